"""Many attempts by turns at once: those that wait for the policy are asked together, the others run their tools."""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from taskgen.agent import SYSTEM, Episode, TreeRefused
from taskgen.agent_tools import TOOLS
from taskgen.attempts import Attendance, Grader, OnRollout, Recorder, Request, fault_of, graded, loaded
from taskgen.errors import PolicyFault, StoreError, TaskgenError
from taskgen.policies.conversation import AgentLimits, ContextFull, Converses, Reply
from taskgen.policies.policy import Sampling
from taskgen.rollout_file import Grade, RolloutFile
from taskgen.sandbox import SandboxProvider
from taskgen.stopper import StoppableProvider, Stopper
from taskgen.types import VerdictKind

ATTEMPT = "agent"
#: Seconds that episodes with an answer wait for others, so that more are asked together.
LINGER_S = 0.05


@dataclass(slots=True)
class _Running:
    """An episode, and the attempt that it is."""

    request: Request
    episode: Episode


class EpisodeCollector:
    """Makes rollouts of one policy by turns of tool calls.

    Attributes:
        run: names policy, version, sampling, limits, tools and seed.
    """

    def __init__(
        self, policy: Converses, sampling: Sampling, limits: AgentLimits, *, seed: int, provider: SandboxProvider,
        cache: Path, file: RolloutFile, jobs: int, on_rollout: OnRollout,
    ) -> None:  # fmt: skip
        self.policy, self.sampling, self.limits = policy, sampling, limits
        self.run = run_key(policy, sampling, limits, seed)
        name = f"{policy.name}@{policy.version}"
        self._recorder = Recorder(self.run, ATTEMPT, name, sampling, seed, file, on_rollout)
        self._jobs, self._cache, self._stopper, self._attendance = jobs, cache, Stopper(), Attendance()
        self._provider = StoppableProvider(provider, self._stopper)
        self._grader = Grader(self._provider, cache, file.grades)

    def collect(self, requests: Sequence[Request]) -> None:
        """Make and record the rollouts that are wanted; as many are under way as the policy likes to be asked for.

        A fault of one (endpoint, sandbox, environment) is recorded without a reward and leaves the others alone. Tools
        and grading take at most ``jobs`` threads each. Raises what ``Collector.collect`` raises.
        """
        tools, grading = ThreadPoolExecutor(self._jobs), ThreadPoolExecutor(self._jobs)
        try:
            graded_later = self._play(deque(requests), tools, grading)
            for future in graded_later:
                future.result()
        except BaseException:
            self._stopper.stop()
            for pool in (tools, grading):
                pool.shutdown(wait=False, cancel_futures=True)
            raise
        for pool in (tools, grading):
            pool.shutdown()

    def _play(
        self, waiting: deque[Request], tools: ThreadPoolExecutor, grading: ThreadPoolExecutor
    ) -> list[Future[None]]:
        """Run all episodes to their ends; returns what is still being graded."""
        busy: dict[Future[None], _Running] = {}
        gradings: list[Future[None]] = []
        while waiting or busy:
            while waiting and len(busy) < self.policy.batch:
                request = waiting.popleft()
                one = _Running(request, self._episode(request))
                busy[tools.submit(self._guarded, one, self._starter(one))] = one
            ready = []
            for one in _done(busy):
                if one.episode.ending is None and one.episode.fault is None:
                    ready.append(one)
                else:
                    gradings.append(grading.submit(self._finish, one))
            gradings = _checked(gradings, at_most=self.policy.batch)
            if ready:
                for one, step in self._asked(ready):
                    busy[tools.submit(self._guarded, one, step)] = one
        return gradings

    def _episode(self, request: Request) -> Episode:
        return Episode(
            task=loaded(request.folder), folder=request.folder, seed=self._recorder.seed_of(request),
            limits=self.limits, sampling=self.sampling,
        )  # fmt: skip

    def _starter(self, one: _Running) -> Callable[[], None]:
        return lambda: one.episode.start(self._provider, self._cache)

    def _asked(self, ready: Sequence[_Running]) -> list[tuple[_Running, Callable[[], None]]]:
        """Ask the policy for the next turns; each episode with what is to be done with its answer."""
        answers = self.policy.reply([one.episode.ask() for one in ready], TOOLS, self.sampling)
        self._attendance.notice([None if isinstance(answer, ContextFull) else answer for answer in answers])
        return [(one, _step(one.episode, answer)) for one, answer in zip(ready, answers, strict=True)]

    def _guarded(self, one: _Running, step: Callable[[], None]) -> None:
        """Do a step; a fault of policy, sandbox or environment ends the episode."""
        try:
            step()
        except StoreError:
            raise
        except TaskgenError as error:
            one.episode.fault = error
        # A sandbox that was closed because the run is being stopped is no fault.
        self._stopper.check()

    def _finish(self, one: _Running) -> None:
        """Grade what an episode left, and record it."""
        episode = one.episode
        reward: float | None = None
        try:
            if episode.fault is not None:
                raise episode.fault
            patch, grade, digest, seconds = self._graded(one)
            reward, extra = grade.reward, {**graded(grade, digest, seconds), "patch": patch}
        except StoreError:
            raise
        except TaskgenError as error:
            extra = fault_of(error)
        finally:
            episode.close()
        self._stopper.check()
        ending = {} if episode.ending is None else {"ending": episode.ending.value}
        about: dict[str, Any] = {"limits": asdict(self.limits), **ending, **episode.costs(), **extra}
        self._recorder.record(one.request, tuple(episode.turns), reward, about)

    def _graded(self, one: _Running) -> tuple[str, Grade, str, float]:
        """The patch as text, its grade, its digest, and the seconds that grading took."""
        try:
            patch = one.episode.patch()
        except TreeRefused as error:
            return "", Grade(0.0, VerdictKind.UNRESOLVED.value, f"what was left is not taken: {error.args[0]}"), "", 0.0
        # Grading takes sandboxes of its own.
        one.episode.close()
        digest, grade, seconds = self._grader.grade(one.request.folder, patch)
        return patch.decode("utf-8", "surrogateescape"), grade, digest, seconds


def _step(episode: Episode, answer: Reply | PolicyFault) -> Callable[[], None]:
    def fail() -> None:
        raise answer  # type: ignore[misc]

    match answer:
        case ContextFull():
            return lambda: episode.full(answer)
        case PolicyFault():
            return fail
        case _:
            return lambda: episode.take(answer)


def _done(busy: dict[Future[None], _Running]) -> list[_Running]:
    """Wait for the first steps that end, a moment longer for others, and take them out. Raises what one raised."""
    wait(busy, return_when=FIRST_COMPLETED)
    done, _ = wait(busy, timeout=LINGER_S)
    found = []
    for future in [future for future in busy if future in done]:  # in the order in which they were begun
        future.result()
        found.append(busy.pop(future))
    return found


def _checked(futures: list[Future[None]], *, at_most: int) -> list[Future[None]]:
    """Those that are open, after a wait for the oldest until there are at most so many. Raises what one raised."""
    still = []
    for number, future in enumerate(futures):
        if future.done() or len(futures) - number > at_most:
            future.result()
        else:
            still.append(future)
    return still


def run_key(policy: Converses, sampling: Sampling, limits: AgentLimits, seed: int) -> str:
    """Ten hex digits that stand for all that the attempts of a run have in common."""
    tools = [[tool.name, tool.description, tool.parameters] for tool in TOOLS]
    parts = [ATTEMPT, asdict(limits), SYSTEM, tools, policy.name, policy.version, asdict(sampling), seed]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:10]
