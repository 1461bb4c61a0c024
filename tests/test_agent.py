"""Attempts by turns on a real task in bubblewrap: limits, what is taken of a workspace, faults, many at once."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from taskgen import agent
from taskgen.agent import Ending, Episode, TreeRefused, gold_calls, patch_of
from taskgen.agent_rollout import EpisodeCollector, run_key
from taskgen.attempts import Request, loaded
from taskgen.errors import PolicyFault, SandboxUnavailable
from taskgen.monitor import monitor
from taskgen.policies.controls import ScriptedConversation, gold_conversation, null_conversation
from taskgen.policies.conversation import AgentLimits, ContextFull, Conversation, Converses, Reply, Tool
from taskgen.policies.policy import Sampling
from taskgen.rollout_file import open_rollouts
from taskgen.sandbox import SandboxProvider
from taskgen.sandboxes.select import select
from taskgen.trajectories import read_rollouts
from taskgen.types import Rollout, ToolCall, Turn
from tests.build_helpers import taskgen, tasks_of

SAMPLING = Sampling(max_tokens=10)
SUBMIT = ToolCall(name="submit", arguments={}, id="s")


@pytest.fixture(scope="module")
def folder(demo_set: Path) -> Path:
    found = [f for f in tasks_of(demo_set) if loaded(f).row["deleted"][0]["qualified_name"] == "rectangle"]
    return found[0]


@pytest.fixture(scope="module")
def provider(build_cache: Path, demo_set: Path) -> SandboxProvider:
    return select("bubblewrap", build_cache)


Begin = Callable[..., Episode]


@pytest.fixture
def begin(folder: Path, provider: SandboxProvider, build_cache: Path) -> Iterator[Begin]:
    begun: list[Episode] = []

    def episode(**limits: Any) -> Episode:  # noqa: ANN401 - any limit
        begun.append(
            Episode(task=loaded(folder), folder=folder, seed=1, limits=AgentLimits(**limits), sampling=SAMPLING)
        )
        begun[-1].start(provider, build_cache)
        return begun[-1]

    yield episode
    for one in begun:
        one.close()


def bash(command: str) -> ToolCall:
    return ToolCall(name="bash", arguments={"command": command}, id="b")


def reply(*calls: ToolCall, text: str = "", **more: Any) -> Reply:  # noqa: ANN401 - any field of a reply
    return Reply(turn=Turn(role="assistant", text=text, tool_calls=calls), **more)


def said(episode: Episode) -> str:
    return "\n".join([episode.turns[-1].text, *(result.text for result in episode.turns[-1].tool_results)])


# --- One episode -------------------------------------------------------------------------------------------


def test_the_sandbox_has_the_workspace_and_nothing_of_the_solution(begin: Begin, folder: Path) -> None:
    episode = begin()
    episode.take(
        reply(bash("ls; ls tests; grep -rn NotImplementedError shapes; python -m pytest -q -p no:cacheprovider"))
    )
    assert "areas.py" in said(episode) and "2 passed" in said(episode)
    hidden = [name.rpartition("::")[2] for name in loaded(folder).row["FAIL_TO_PASS"]]
    assert len(hidden) == 2
    gold = next(line[1:].strip() for line in loaded(folder).row["patch"].splitlines() if line.startswith("+    area"))
    where = "/workspace /home /env/artifacts /tmp /env/venv/lib/python3*/site-packages/demo*"
    words = " ".join(f"-e '{word}'" for word in (*hidden, gold))
    episode.take(reply(bash(f"grep -rlw {words} {where} 2>/dev/null; find {where} -name '*gold*' 2>/dev/null")))
    assert said(episode).strip() in ("", "exit code 1")
    episode.take(reply(bash(f"grep -rlw -e triangle {where} 2>/dev/null")))
    assert "/workspace/shapes/areas.py" in said(episode), "the search finds what is there"
    episode.take(reply(bash(f"cat {folder}/gold.patch /work/* ~root/*")))
    assert "No such file" in said(episode) and "diff" not in said(episode)


def test_an_attempt_from_the_task_to_the_patch(begin: Begin) -> None:
    episode = begin()
    assert [turn.role for turn in episode.turns] == ["system", "user"]
    assert "`rectangle`" in episode.turns[1].text and "pytest" in episode.turns[1].text
    edit = {"path": "shapes/areas.py", "old": "    raise NotImplementedError\n", "new": "    return 1\n"}
    episode.take(reply(bash("cd tests"), ToolCall(name="edit", arguments=edit, id="e"), n_tokens=5, n_prompt_tokens=7))
    assert [result.call_id for result in episode.turns[-1].tool_results] == ["b", "e"]
    episode.take(reply(bash("echo > new.txt; mkdir .git; echo > .git/config; echo > conftest.py"), n_tokens=5))
    episode.take(reply(SUBMIT, bash("echo too late > shapes/late.py"), n_tokens=1))
    assert episode.ending is Ending.SUBMITTED and "not run: submitted" in said(episode)
    patch = episode.patch().decode()
    assert "+    return 1" in patch and patch.count("diff --git") == 1
    assert (episode.n_tokens, episode.n_prompt_tokens, episode.cost_usd) == (11, 7, None)
    assert episode.seconds > 0


def test_a_reply_without_a_call_and_a_malformed_one_are_answered(begin: Begin) -> None:
    episode = begin()
    episode.take(reply(text="What shall I do?"))
    assert episode.turns[-1] == Turn(role="user", text=agent.NO_CALL)
    episode.take(reply(text="<tool_call>", problem="malformed tool call"))
    assert episode.turns[-1] == Turn(role="user", text="malformed tool call") and episode.ending is None


def test_calls_of_one_turn_are_bounded(begin: Begin) -> None:
    episode = begin()
    episode.take(reply(*[bash("echo >> log")] * 18))
    assert [result.is_error for result in episode.turns[-1].tool_results] == [False] * 16 + [True] * 2
    assert "more than 16 calls" in said(episode)


@pytest.mark.parametrize(
    ("limits", "ending"),
    [
        ({"turns": 2}, Ending.TURNS),
        ({"tokens": 20}, Ending.TOKENS),
        ({"context_tokens": 70}, Ending.CONTEXT),
        ({"seconds": 4.0}, Ending.SECONDS),
    ],
)
def test_limits_end_an_attempt(begin: Begin, limits: dict[str, Any], ending: Ending) -> None:
    episode = begin(**limits)
    one = reply(bash("printf 'x%.0s' $(seq 90)"), n_prompt_tokens=20, n_tokens=10, seconds=2.0)
    episode.take(one)
    # 20 + 10 so far, 90 characters of answer, 10 of the next reply: 70 tokens at most.
    assert episode.ending is None
    episode.take(reply(bash("echo"), n_prompt_tokens=60, n_tokens=10, seconds=2.0))
    assert episode.ending is ending
    assert episode.patch() == b""


def test_time_that_runs_out_between_two_calls(begin: Begin) -> None:
    episode = begin(seconds=0.5)
    episode.take(reply(bash("sleep 1"), bash("echo > shapes/late.py")))
    assert episode.ending is Ending.SECONDS and "not run: time limit" in said(episode)
    assert episode.patch() == b""


def test_a_context_that_is_full_ends_an_attempt_but_not_its_beginning(begin: Begin) -> None:
    episode = begin()
    with pytest.raises(ContextFull):
        episode.full(ContextFull("too long"))
    episode.take(reply(bash("true")))
    episode.full(ContextFull("too long"))
    assert episode.ending is Ending.CONTEXT and episode.patch() == b""


def test_token_ids_put_together_are_what_the_policy_read(begin: Begin) -> None:
    episode = begin()
    exact = {"logps": (-0.5, -0.5)}
    episode.take(reply(bash("true"), prompt_ids=(1, 2, 3), token_ids=(4, 5), **exact))
    episode.take(reply(bash("true"), prompt_ids=(1, 2, 3, 4, 5, 6), token_ids=(7, 8), **exact))
    # A tokenizer that split the text of the second reply in another way.
    episode.take(reply(SUBMIT, prompt_ids=(1, 2, 3, 4, 5, 6, 78, 9), token_ids=(10, 11), **exact))
    recorded = [(turn.role, turn.extra.get("token_ids"), turn.extra.get("restarts", False)) for turn in episode.turns]
    assert recorded == [
        ("system", None, False), ("user", [1, 2, 3], False), ("assistant", [4, 5], False), ("tool", [6], False),
        ("assistant", [7, 8], False), ("tool", [1, 2, 3, 4, 5, 6, 78, 9], True), ("assistant", [10, 11], False),
        ("tool", None, False),
    ]  # fmt: skip
    assert episode.turns[2].extra["logps"] == [-0.5, -0.5]


# --- What is taken of a workspace ----------------------------------------------------------------------------


def test_of_a_hostile_workspace_only_source_text_is_taken(begin: Begin) -> None:
    episode = begin()
    hostile = [
        "ln -s /etc/passwd shapes/passwd.py", "ln -s / shapes/all", "mkfifo shapes/pipe.py",
        "echo 'import os' > conftest.py", "echo '[pytest]' > pytest.ini", "printf '\\377' > shapes/bytes.py",
        "ln shapes/areas.py shapes/hard.py", "rm tests/test_areas.py", "echo > /home/agent/x.py",
        "chmod 0 shapes/__init__.py", "echo 'GOOD = 1' > shapes/good.py",
    ]  # fmt: skip
    episode.take(reply(*map(bash, hostile), SUBMIT))
    patch = episode.patch().decode()
    named = [line.split()[2] for line in patch.splitlines() if line.startswith("diff --git")]
    assert "a/shapes/good.py" in named and "+GOOD = 1" in patch
    # A hard link is one name of two for the same file; the archive has the first as a file.
    assert set(named) <= {"a/shapes/good.py", "a/shapes/areas.py", "a/shapes/hard.py"} and "root:" not in patch


def test_a_workspace_that_was_closed_is_taken_all_the_same(begin: Begin) -> None:
    episode = begin()
    episode.take(reply(bash("echo 'A = 1' > shapes/a.py; chmod -R 0 /workspace")))
    assert "+A = 1" in episode.patch().decode()


def test_a_workspace_that_is_too_large_is_no_solution_and_no_fault(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent, "MAX_TREE_BYTES", 1 << 20)
    episode = begin()
    episode.take(reply(bash("truncate -s 300M big")))
    with pytest.raises(TreeRefused, match="larger than"):
        episode.patch()
    episode.take(reply(bash("rm big; mkdir shapes/many; cd shapes/many; seq 2100 | sed 's/$/.py/' | xargs touch")))
    monkeypatch.setattr(agent, "MAX_TREE_BYTES", 64 << 20)
    with pytest.raises(TreeRefused, match="the workspace changes more than"):
        episode.patch()


def test_what_the_build_made_is_not_the_agents(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent, "ARTIFACTS_DIR", "/home/agent/artifacts")
    episode = begin()
    made = "mkdir -p ~/artifacts/shapes; echo 'V = 1' | tee ~/artifacts/shapes/_version.py > shapes/_version.py"
    episode.take(reply(bash(made)))
    assert episode.patch() == b""
    episode.take(reply(bash("echo 'V = 2' > shapes/_version.py")))
    assert "+V = 2" in episode.patch().decode()


def test_a_sandbox_that_dies_is_a_fault(begin: Begin) -> None:
    episode = begin()
    episode.close()
    with pytest.raises(SandboxUnavailable):
        episode.take(reply(bash("true")))
    with pytest.raises(SandboxUnavailable):
        episode.patch()


def test_the_gold_calls_make_the_gold_tree(folder: Path, begin: Begin) -> None:
    task = loaded(folder)
    episode = begin()
    episode.take(reply(*gold_calls(task), SUBMIT))
    assert episode.patch() == patch_of(task, task.gold)


# --- Many episodes -------------------------------------------------------------------------------------------


@dataclass
class Talker:
    """Asks of each conversation what ``next_of`` says; keeps what it was asked."""

    next_of: Callable[[Conversation], Reply | PolicyFault]
    name: str = "talker"
    version: str = "1"
    batch: int = 4
    asked: list[list[Conversation]] = field(default_factory=list)

    def reply(
        self, conversations: Sequence[Conversation], tools: Sequence[Tool], sampling: Sampling
    ) -> list[Reply | PolicyFault]:
        assert [tool.name for tool in tools] == ["bash", "read", "edit", "submit"]
        self.asked.append(list(conversations))
        return [self.next_of(conversation) for conversation in conversations]

    def close(self) -> None:
        return


Play = Callable[..., list[Rollout]]


@pytest.fixture
def play(folder: Path, provider: SandboxProvider, build_cache: Path, tmp_path: Path) -> Play:
    def run(policy: Converses, n: int, **limits: Any) -> list[Rollout]:  # noqa: ANN401
        with open_rollouts(tmp_path / "rollouts.jsonl") as file:
            collector = EpisodeCollector(
                policy, SAMPLING, AgentLimits(**limits), seed=0, provider=provider, cache=build_cache, file=file,
                jobs=2, on_rollout=lambda rollout: None,
            )  # fmt: skip
            done = file.tally(collector.run, folder.name).rewards
            collector.collect([Request(folder, index) for index in range(n) if index not in done])
        found = [r for r in read_rollouts(tmp_path / "rollouts.jsonl") if r.extra["run"] == collector.run]
        return sorted(found, key=lambda r: r.extra["index"])

    return run


def gold_of(conversation: Conversation) -> Sequence[ToolCall]:
    return gold_calls(loaded(conversation.folder))


def test_controls_earn_what_they_must(play: Play) -> None:
    assert [r.reward for r in play(gold_conversation(gold_of), 3)] == [1.0] * 3
    assert [r.reward for r in play(null_conversation(), 2)] == [0.0] * 2


def test_a_rollout_is_recorded_whole(play: Play) -> None:
    (found,) = play(gold_conversation(gold_of), 1)
    assert [turn.role for turn in found.turns] == ["system", "user", "assistant", "tool", "assistant", "tool"]
    assert found.turns[2].tool_calls[0].name == "edit" and "replaced" in found.turns[3].tool_results[0].text
    assert found.turns[2].extra["finish_reason"] == "stop"
    assert (found.extra["attempt"], found.extra["ending"], found.extra["verdict"]) == ("agent", "submitted", "resolved")
    assert found.extra["limits"]["turns"] == 50 and "+    area = width" in found.extra["patch"]
    assert monitor(found) == []


def test_several_advance_in_one_batch_and_each_by_itself(play: Play) -> None:
    def next_of(asked: Conversation) -> Reply:
        done = asked.n_replies > asked.seed % 3
        return reply(SUBMIT if done else bash(f"echo {asked.seed} >> shapes/areas.py; cat shapes/areas.py"))

    policy = Talker(next_of)
    found = play(policy, 6)
    assert max(map(len, policy.asked)) > 1 and max(map(len, policy.asked)) <= 4
    seeds = [r.extra["seed"] for r in found]
    assert len(set(seeds)) == 6
    for rollout in found:
        own = str(rollout.extra["seed"])
        texts = " ".join(result.text for turn in rollout.turns for result in turn.tool_results)
        assert own in rollout.extra["patch"] and own in texts
        assert not any(str(other) in texts for other in seeds if str(other) != own)
    turn_seeds = {c.turn_seed for batch in policy.asked for c in batch}
    assert len(turn_seeds) == sum(map(len, policy.asked))


def test_a_fault_of_one_leaves_the_others_alone(play: Play) -> None:
    lost: list[int] = []

    def next_of(asked: Conversation) -> Reply | PolicyFault:
        if asked.n_replies and not lost:
            lost.append(asked.seed)
            return PolicyFault("the line is dead")
        return reply(bash("true") if not asked.n_replies else SUBMIT)

    found = play(Talker(next_of), 3)
    assert [r.reward for r in found].count(None) == 1 and [r.reward for r in found].count(0.0) == 2
    (fault,) = [r for r in found if r.reward is None]
    assert "the line is dead" in fault.extra["fault"] and fault.turns[-1].role == "tool"
    # It is begun again with the same seed.
    again = [r for r in play(Talker(next_of), 3) if r.reward is not None]
    assert len(again) == 3 and {r.extra["seed"] for r in again} >= set(lost)


def test_a_policy_that_is_gone_ends_the_run(play: Play) -> None:
    with pytest.raises(PolicyFault, match="batches in a row without an answer"):
        play(Talker(lambda asked: PolicyFault("no route")), 12)


def test_a_conversation_that_no_longer_fits_is_graded(play: Play) -> None:
    def next_of(asked: Conversation) -> Reply | PolicyFault:
        return ContextFull("too long") if asked.n_replies else reply(*gold_of(asked))

    (found,) = play(Talker(next_of), 1)
    assert (found.reward, found.extra["ending"]) == (1.0, "context limit")


def test_a_sandbox_that_dies_has_no_reward(
    play: Play, provider: SandboxProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []
    create = provider.create

    def remembered(**options: Any) -> Any:  # noqa: ANN401
        made.append(create(**options))
        return made[-1]

    monkeypatch.setattr(provider, "create", remembered)

    def next_of(asked: Conversation) -> Reply:
        if asked.n_replies == 1:
            made[0].close()
        return reply(bash("true"))

    (found,) = play(Talker(next_of), 1)
    assert found.reward is None and "SandboxUnavailable" in found.extra["fault"]


def test_what_is_too_large_earns_nothing(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent, "MAX_TREE_BYTES", 1 << 20)
    script = ScriptedConversation(
        name="large", version="1", calls_of=lambda asked: (*gold_of(asked), bash("truncate -s 300M big"))
    )
    (found,) = play(script, 1)
    assert found.reward == 0.0 and "what was left is not taken" in found.extra["reason"]


def test_a_run_is_named_by_its_way_and_limits() -> None:
    policy = null_conversation()
    keys = {run_key(policy, SAMPLING, AgentLimits(turns=n), seed) for n in (1, 2) for seed in (0, 1)}
    assert len(keys) == 4


# --- The command -----------------------------------------------------------------------------------------------


def test_the_command(folder: Path, build_cache: Path, tmp_path: Path) -> None:
    file, policy = tmp_path / "rollouts.jsonl", tmp_path / "calls.yaml"
    calls = [{"name": "bash", "arguments": {"command": "ls"}}, {"name": "nose", "arguments": {}}]
    policy.write_text(json.dumps({"kind": "calls", "calls": calls, "agent": {"turns": 2}}))
    asked = ("calibrate", folder, "--policy", policy, "--max-samples", "1", "--rollouts", file)
    ended = taskgen(*asked, "--json", cache=build_cache)
    assert ended.code == 0, ended.stderr
    assert (ended.json()["attempt"], ended.json()["tasks"][0]["passes"]) == ("agent", 0)
    (found,) = [r for r in read_rollouts(file) if r.extra["attempt"] == "agent"]
    assert found.extra["ending"] == "turn limit" and "tool not found: nose" in found.turns[-1].tool_results[0].text
    again = taskgen(*asked, "--json", cache=build_cache)
    assert (again.code, again.json()["rollouts"]) == (0, 0)
    assert "cannot attempt tasks by --attempt fill" in taskgen(*asked, "--attempt", "fill", cache=build_cache).stderr
