"""A pool of gloo ranks, one process and one thread each, that run a function together, again and again."""

from __future__ import annotations

import os
import pickle
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from types import TracebackType
from typing import Any

PRELOAD = ["torch", "torch.distributed.tensor", "trainer.muon", "trainer.muon_reference"]


class RankFailed(AssertionError):
    """Some ranks raised, died, or did not answer in time: what each of them had to say."""


def _send(pipe: Connection, message: object) -> None:
    pipe.send_bytes(pickle.dumps(message))  # not pipe.send: torch makes that share the tensors' memory


def _serve(rank: int, n: int, store: str, timeout_s: float, pipe: Connection) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=n, timeout=timedelta(seconds=timeout_s)
    )
    _send(pipe, "ready")
    while True:
        try:
            function, args = pickle.loads(pipe.recv_bytes())
        except EOFError:
            os._exit(0)  # the pool is gone; what other ranks may still be waiting for is of no interest
        try:
            _send(pipe, (True, function(*args)))
        except BaseException as error:
            _send(pipe, (False, f"{error!r}\n{traceback.format_exc()}"))


class Ranks:
    """``n`` ranks with a default process group. After a failure the pool must be closed: collectives may be open."""

    def __init__(self, n: int, timeout_s: float = 60.0) -> None:
        context = get_context("forkserver")
        context.set_forkserver_preload(PRELOAD)
        self.n, self.timeout_s, self._broken = n, timeout_s, ""
        self._folder = tempfile.TemporaryDirectory()
        self._pipes: list[Connection] = []
        self.processes = []
        for rank in range(n):
            ours, theirs = context.Pipe()
            args = (rank, n, f"{self._folder.name}/store", timeout_s, theirs)
            process = context.Process(target=_serve, args=args, daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self.processes.append(process)
        self._answers(120.0)

    def run(self, function: Callable[..., Any], *args: object) -> list[Any]:
        """What ``function(*args)`` returns on each rank. Raises RankFailed if any of them did not return."""
        outcomes = self.outcomes(function, *args)
        bad = {rank: said for rank, (fine, said) in enumerate(outcomes) if not fine}
        if bad:
            raise RankFailed("\n".join(f"rank {rank}: {said}" for rank, said in bad.items()))
        return [said for _, said in outcomes]

    def outcomes(self, function: Callable[..., Any], *args: object) -> list[tuple[bool, Any]]:
        """(True, what it returned) or (False, what it raised) for each rank."""
        if self._broken:
            raise RankFailed(f"the pool is no longer in step, since {self._broken}")
        for rank, pipe in enumerate(self._pipes):
            if self.processes[rank].is_alive():
                _send(pipe, (function, args))
        return self._answers(5 * self.timeout_s)

    def _answers(self, timeout_s: float) -> list[Any]:
        answers: dict[int, Any] = {}
        while len(answers) < self.n:
            open_pipes = [pipe for rank, pipe in enumerate(self._pipes) if rank not in answers]
            ready = wait(open_pipes, timeout_s)
            if not ready:
                self._broken = f"no answer came from ranks {sorted(set(range(self.n)) - answers.keys())}"
                raise RankFailed(self._broken)
            for pipe in ready:
                assert isinstance(pipe, Connection)
                rank = self._pipes.index(pipe)
                try:
                    answers[rank] = pickle.loads(pipe.recv_bytes())
                except EOFError:
                    answers[rank] = (False, "died")
        return [answers[rank] for rank in range(self.n)]

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for pipe in self._pipes:
            pipe.close()
        for process in self.processes:
            process.kill()
            process.join()
        self._folder.cleanup()
