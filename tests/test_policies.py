"""Policies that are asked over a connection or a pipe: what they give, and that their faults are no failed attempts."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest

from taskgen.errors import ConfigError, PolicyFault, PrerequisiteError
from taskgen.policies import tool_text
from taskgen.policies.controls import GoldPolicy, NullPolicy, ScriptedPolicy, Strength
from taskgen.policies.conversation import AgentLimits, ContextFull, Conversation, Reply, Tool
from taskgen.policies.endpoint import EndpointConfig, EndpointPolicy
from taskgen.policies.policy import Completion, Form, Prompt, Sampled, Sampling
from taskgen.policies.select import choose, choose_any
from taskgen.types import ToolCall, ToolResult, Turn
from tests.local_server import serving

SAMPLING = Sampling(max_tokens=20, temperature=0.5)


def prompt_in(folder: Path) -> Prompt:
    turns = (Turn(role="system", text="be brief"), Turn(role="user", text="write f"))
    return Prompt(instance_id="t", folder=folder, text="def f():", indent="    ", messages=turns)


def one(policy: NullPolicy | GoldPolicy | ScriptedPolicy | EndpointPolicy, n: int = 1) -> list[Sampled]:
    (found,) = policy.complete([prompt_in(Path("x"))], [list(range(n))], SAMPLING)
    return found


# --- An endpoint -------------------------------------------------------------------------------------------


class Endpoint:
    """A server that answers with statuses in turn, the last one for ever."""

    def __init__(self) -> None:
        self.statuses = [200]
        self.headers: dict[str, str] = {}
        self.body: dict[str, Any] | None = None
        self.requests: list[dict[str, Any]] = []
        self.keys: list[str] = []
        self.at_once = self.most_at_once = 0
        mutex, outer = threading.Lock(), self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                with mutex:
                    outer.at_once += 1
                    outer.most_at_once = max(outer.most_at_once, outer.at_once)
                    outer.requests.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
                    outer.keys.append(self.headers["authorization"])
                    status = outer.statuses.pop(0) if len(outer.statuses) > 1 else outer.statuses[0]
                threading.Event().wait(0.02)
                data = json.dumps(outer.body or answer(f"answer {outer.requests[-1]['seed']}")).encode()
                with mutex:
                    outer.at_once -= 1
                self.send_response(status)
                for name, value in {"content-type": "application/json", **outer.headers}.items():
                    self.send_header(name, value)
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: object) -> None:
                return

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}/v1"


def answer(text: str) -> dict[str, Any]:
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "length"}
    usage = {"prompt_tokens": 1000, "completion_tokens": 10, "total_tokens": 1010}
    return {"id": "c", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice], "usage": usage}


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    found = Endpoint()
    with serving(found.http):
        yield found


Make = Callable[..., EndpointPolicy]


@pytest.fixture
def make(endpoint: Endpoint) -> Iterator[Make]:
    made: list[EndpointPolicy] = []

    def policy(**settings: Any) -> EndpointPolicy:  # noqa: ANN401 - any key of the configuration
        made.append(EndpointPolicy(EndpointConfig(endpoint=endpoint.url, model="m", attempts=2, **settings)))
        return made[-1]

    yield policy
    for found in made:
        found.close()


def test_an_endpoint_is_asked_as_it_should_be(endpoint: Endpoint, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY", "secret")
    policy = make(usd_per_million_prompt_tokens=3.0, usd_per_million_tokens=15.0, api_key_env="KEY")
    (found,) = one(policy)
    assert isinstance(found, Completion)
    assert (found.text, found.form, found.finish_reason, found.token_ids) == ("answer 0", Form.ANSWER, "length", None)
    assert (found.n_prompt_tokens, found.n_tokens) == (1000, 10)
    assert found.cost_usd == pytest.approx(0.00315)
    asked = endpoint.requests[0]
    assert asked["messages"] == [{"role": "system", "content": "be brief"}, {"role": "user", "content": "write f"}]
    assert (asked["max_tokens"], asked["temperature"], asked["seed"], asked["model"]) == (20, 0.5, 0, "m")
    assert "top_p" not in asked and endpoint.keys == ["Bearer secret"]


def test_without_prices_no_cost_is_known(make: Make) -> None:
    (found,) = one(make())
    assert isinstance(found, Completion) and found.cost_usd is None


@pytest.mark.parametrize("status", [429, 500, 503])
def test_what_passes_is_tried_again(endpoint: Endpoint, make: Make, status: int) -> None:
    endpoint.statuses, endpoint.headers = [status, 200], {"retry-after-ms": "10"}
    (found,) = one(make())
    assert isinstance(found, Completion) and len(endpoint.requests) == 2


@pytest.mark.parametrize("status", [429, 500, 400])
def test_one_request_that_fails_does_not_mask_the_others(endpoint: Endpoint, make: Make, status: int) -> None:
    endpoint.headers = {"retry-after-ms": "10"}
    endpoint.statuses = [200, *[status] * (1 if status == 400 else 2), 200]
    found = one(make(concurrency=1), 3)
    assert [isinstance(sample, PolicyFault) for sample in found] == [False, True, False]
    assert str(status) in str(found[1])


def test_an_answer_of_another_form_is_a_fault(endpoint: Endpoint, make: Make) -> None:
    policy = make()
    assert isinstance(one(policy)[0], Completion)
    for body in ({**answer(""), "choices": []}, {"error": "overloaded"}):
        endpoint.body = body
        assert isinstance(one(policy)[0], PolicyFault)


@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_refusal_is_an_error_of_the_configuration(endpoint: Endpoint, make: Make, status: int) -> None:
    endpoint.statuses = [status]
    with pytest.raises(ConfigError, match="check endpoint, model and key"):
        one(make())


def test_an_endpoint_that_never_answered_is_missing(make: Make, endpoint: Endpoint) -> None:
    policy = EndpointPolicy(EndpointConfig(endpoint="http://127.0.0.1:9/v1", model="m", attempts=1, timeout_s=5.0))
    with pytest.raises(PrerequisiteError, match="none was answered"):
        one(policy, 3)
    policy.close()


def test_an_endpoint_that_dies_is_a_fault(endpoint: Endpoint, make: Make) -> None:
    policy = make()
    assert isinstance(one(policy)[0], Completion)
    endpoint.http.shutdown()
    endpoint.http.server_close()
    found = one(policy, 2)
    assert all(isinstance(sample, PolicyFault) for sample in found)


def test_requests_at_one_time_are_bounded(endpoint: Endpoint, make: Make) -> None:
    assert len(one(make(concurrency=3), 12)) == 12
    assert 1 < endpoint.most_at_once <= 3


# --- Conversations with tools ------------------------------------------------------------------------------------

TOOL = Tool(name="bash", description="run it", parameters={"type": "object", "properties": {}})
CALL = ToolCall(name="bash", arguments={"command": "ls"}, id="one")
TURNS = (
    Turn(role="system", text="be brief"),
    Turn(role="user", text="write f"),
    Turn(role="assistant", tool_calls=(CALL,)),
    Turn(role="tool", tool_results=(ToolResult(text="a.py", call_id="one"),)),
    Turn(role="assistant", text="hm \ud800"),
    Turn(role="user", text="call a tool"),
)


def asked_with(*turns: Turn, seed: int = 1) -> Conversation:
    return Conversation(instance_id="t", folder=Path("x"), turns=turns, seed=seed)


def reply_to(policy: EndpointPolicy, *turns: Turn) -> Reply | PolicyFault:
    (found,) = policy.reply([asked_with(*turns)], [TOOL], SAMPLING)
    return found


def with_calls(*calls: dict[str, Any]) -> dict[str, Any]:
    body = answer("")
    body["choices"][0] |= {"finish_reason": "tool_calls"}
    body["choices"][0]["message"] |= {"content": None, "tool_calls": list(calls)}
    return body


def function(name: str, arguments: str, id: str = "c1") -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def test_a_conversation_is_sent_and_calls_are_read(endpoint: Endpoint, make: Make) -> None:
    endpoint.body = with_calls(function("bash", '{"command": "ls"}'), function("read", '{"path"', "c2"))
    found = reply_to(make(usd_per_million_prompt_tokens=3.0, usd_per_million_tokens=15.0), *TURNS)
    assert isinstance(found, Reply)
    assert found.turn.tool_calls == (
        ToolCall(name="bash", arguments={"command": "ls"}, id="c1"),
        ToolCall(name="read", arguments={"raw": '{"path"'}, id="c2"),
    )
    assert (found.turn.text, found.finish_reason, found.n_prompt_tokens, found.n_tokens) == ("", "tool_calls", 1000, 10)
    assert found.cost_usd == pytest.approx(0.00315) and not found.problem
    (sent,) = endpoint.requests
    assert sent["messages"] == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "write f"},
        {"role": "assistant", "content": None, "tool_calls": [function("bash", '{"command": "ls"}', "one")]},
        {"role": "tool", "tool_call_id": "one", "content": "a.py"},
        {"role": "assistant", "content": "hm ?"},
        {"role": "user", "content": "call a tool"},
    ]
    described = {"name": "bash", "description": "run it", "parameters": {"type": "object", "properties": {}}}
    assert sent["tools"] == [{"type": "function", "function": described}]


def test_each_turn_of_each_conversation_has_a_seed_of_its_own(endpoint: Endpoint, make: Make) -> None:
    make().reply([asked_with(*TURNS[:2], seed=s) for s in (1, 2)] + [asked_with(*TURNS[:4])], [TOOL], SAMPLING)
    assert len({sent["seed"] for sent in endpoint.requests}) == 3


def test_calls_of_another_form_have_ids_of_their_own(endpoint: Endpoint, make: Make) -> None:
    endpoint.body = with_calls(
        function("bash", "[1]"), function("bash", "", "c1"), function("", "{}", ""), {"id": None, "type": "function"}
    )
    found = reply_to(make(), *TURNS)
    assert isinstance(found, Reply)
    assert [(call.name, dict(call.arguments), call.id) for call in found.turn.tool_calls] == [
        ("bash", {"raw": "[1]"}, "c1"), ("bash", {}, "call-2-1"), ("?", {}, "call-2-2"), ("?", {}, "call-2-3"),
    ]  # fmt: skip


def test_a_conversation_that_is_too_long_is_no_fault_of_the_endpoint(endpoint: Endpoint, make: Make) -> None:
    endpoint.statuses = [400]
    endpoint.body = {"error": {"message": "This model's maximum context length is 8192 tokens.", "code": 400}}
    assert isinstance(reply_to(make(), *TURNS), ContextFull)


def test_another_refusal_of_a_conversation_is_a_fault(endpoint: Endpoint, make: Make) -> None:
    policy = make()
    assert isinstance(reply_to(policy, *TURNS), Reply)
    endpoint.statuses, endpoint.body = [400], {"error": {"message": "unknown field", "code": 400}}
    found = reply_to(policy, *TURNS)
    assert isinstance(found, PolicyFault) and not isinstance(found, ContextFull)


# --- Tool calls as text ------------------------------------------------------------------------------------------

OBJECT = '{"name": "bash", "arguments": {"command": "ls"}}'


@pytest.mark.parametrize(
    "text",
    [
        f"I look.\n<tool_call>\n{OBJECT}\n</tool_call>",
        f"<tool_call>{OBJECT}</tool_call> and so on",
        f"```json\n{OBJECT}\n```",
        f"Look:\n```tool_call\n{OBJECT}\n```\n",
    ],
)
def test_calls_are_read_from_text(text: str) -> None:
    calls, problem = tool_text.parse(text, 3)
    assert calls == (ToolCall(name="bash", arguments={"command": "ls"}, id="call-3-0"),) and not problem
    assert [call.id for call in tool_text.parse(text + "\n" + text, 0)[0]] == ["call-0-0", "call-0-1"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("<tool_call>{</tool_call>", "no JSON"),
        (f"<tool_call>{OBJECT}, {OBJECT}</tool_call>", "no JSON"),
        ("<tool_call>[1]</tool_call>", "a JSON object is wanted, not a list"),
        ('<tool_call>{"name": "bash"}</tool_call>', "the keys must be name and arguments, not name"),
        ('<tool_call>{"name": "bash", "arguments": "ls"}</tool_call>', "arguments an object"),
        ('<tool_call>{"name": 1, "arguments": {}}</tool_call>', "name must be text"),
        (f"<tool_call>{OBJECT}", "is not closed"),
        (f"<tool_call>{'[' * 100_000}</tool_call>", "malformed tool call"),
        (f"<tool_call>{OBJECT}</tool_call><tool_call>x</tool_call>", "no JSON"),
    ],
)
def test_malformed_calls_are_said_and_not_guessed(text: str, problem: str) -> None:
    calls, said = tool_text.parse(text, 0)
    assert calls == () and problem in said and "<tool_call>" in said


def test_text_without_calls_is_no_mistake() -> None:
    for text in ("done", "```python\nprint(1)\n```", "```\n{}\n```"):
        assert tool_text.parse(text, 0) == ((), "")


def test_a_conversation_in_roles_and_texts() -> None:
    sent = tool_text.messages(TURNS, [TOOL])
    assert [message["role"] for message in sent] == ["system", "user", "assistant", "user", "assistant", "user"]
    assert '"name": "bash"' in sent[0]["content"] and sent[0]["content"].startswith("be brief")
    assert sent[3]["content"] == "<tool_response>\na.py\n</tool_response>" and sent[4]["content"] == "hm ?"


# --- Controls ------------------------------------------------------------------------------------------------


def test_a_scripted_policy_is_as_strong_as_it_says() -> None:
    policy = ScriptedPolicy(solves=0.9, rates={"t": 0.3}, body_of=lambda prompt: "    return 1\n")
    texts = [sample.text for sample in one(policy, 4000) if isinstance(sample, Completion)]
    assert set(texts) == {"\n    return 1\n", "\n    return None\n"}
    assert texts.count("\n    return 1\n") / 4000 == pytest.approx(0.3, abs=0.03)
    assert "0.3" in policy.version and "0.9" in policy.version


def test_a_scripted_policy_of_some_strength_meets_each_task_s_hardness(tmp_path: Path) -> None:
    strength = Strength(skill=3.0, hardness_of=lambda prompt: 3.0 + math.log(3), spread=0.0)
    policy = ScriptedPolicy(solves=1.0, body_of=lambda prompt: "    return 1\n", strength=strength)
    texts = [sample.text for sample in one(policy, 4000) if isinstance(sample, Completion)]
    assert texts.count("\n    return 1\n") / 4000 == pytest.approx(0.25, abs=0.03)
    assert policy.version == "strength 3,spread 0"
    # A part of its own by instance id: the same each time, and another for another task.
    spread = replace(strength, spread=2.0)
    prompts = [replace(prompt_in(tmp_path), instance_id=f"t{i}") for i in range(400)]
    logits = [math.log(p / (1 - p)) + math.log(3) for p in map(spread.chance, prompts)]
    assert [spread.chance(prompt) for prompt in prompts[:9]] == [spread.chance(prompt) for prompt in prompts[:9]]
    assert (fmean(logits), stdev(logits)) == (pytest.approx(0.0, abs=0.3), pytest.approx(2.0, abs=0.3))


def test_a_scripted_policy_of_whole_patches_gives_the_gold_patch_or_nothing(tmp_path: Path) -> None:
    (tmp_path / "gold.patch").write_text("the patch")
    (tmp_path / "p.yaml").write_text("kind: scripted\nstrength: 0.5\nspread: 0.0\nwhole: true\n")
    policy = choose(str(tmp_path / "p.yaml"), tmp_path, lambda prompt: "", lambda prompt: 0.5).policy
    (found,) = policy.complete([prompt_in(tmp_path)], [list(range(100))], SAMPLING)
    samples = [sample for sample in found if isinstance(sample, Completion)]
    assert {(s.text, s.form) for s in samples} == {("the patch", Form.PATCH), ("", Form.PATCH)}
    assert policy.version == "strength 0.5,spread 0,patch"


# --- --policy ------------------------------------------------------------------------------------------------


def test_policies_by_name(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text("kind: scripted\nsolves: 0.25\nsampling:\n  max_tokens: 9\n")
    names = ["null", "gold", "openai:org/model@http://127.0.0.1:8000/v1", str(file)]
    chosen = [choose_any(name, tmp_path, lambda prompt: "", lambda prompt: 0.0, lambda asked: ()) for name in names]
    assert [found.policy.name for found in chosen if found.policy] == ["null", "gold", "org/model", "scripted"]
    assert [found.converses.name for found in chosen if found.converses] == ["null", "gold", "org/model", "scripted"]
    assert (chosen[-1].sampling.max_tokens, chosen[-1].turn_sampling.max_tokens) == (9, 9)
    assert (chosen[0].sampling.max_tokens, chosen[0].turn_sampling.max_tokens) == (256, 2048)
    for found in chosen:
        found.close()


def test_a_policy_of_calls_only_converses(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text("kind: calls\ncalls:\n- name: bash\n  arguments: {command: ls}\nagent:\n  turns: 3\n")
    found = choose_any(str(file), tmp_path, lambda prompt: "", lambda prompt: 0.0, lambda asked: ())
    with pytest.raises(ConfigError, match="only makes tool calls"):
        choose(str(file), tmp_path, lambda prompt: "", lambda prompt: 0.0)
    assert found.policy is None and found.limits == AgentLimits(turns=3)
    assert found.converses is not None
    turns: tuple[Turn, ...] = (Turn(role="user", text="go"),)
    names = []
    for _ in range(2):
        asked = Conversation(instance_id="t", folder=Path("x"), turns=turns, seed=1)
        (reply,) = found.converses.reply([asked], [], SAMPLING)
        assert isinstance(reply, Reply)
        names += [call.name for call in reply.turn.tool_calls]
        turns = (*turns, reply.turn)
    assert names == ["bash", "submit"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nil", "there is no such policy"),
        ("openai:m", "there is no such policy"),
        ("openai:m@ftp://x", "there is no such policy"),
        ("none.yaml", "there is no such file"),
    ],
)
def test_policies_that_do_not_exist(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        choose(text, tmp_path, lambda prompt: "", lambda prompt: 0.0)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("kind: oracle\n", "kind: must be one of scripted, calls, local, openai, found 'oracle'"),
        ("kind: scripted\nsolves: 2.0\n", r"p\.yaml:2: solves"),
        ("kind: openai\nmodel: m\nendpoint: http://x\nmodle: n\n", r"p\.yaml:4: unknown key 'modle'"),
        ("kind: calls\ncalls:\n- nam: bash\n", r"p\.yaml:3: unknown key 'nam'"),
        ("kind: scripted\nagent:\n  turns: 0\n", r"p\.yaml:3: agent\.turns"),
        ("kind: local\nsampling:\n  top_p: 0.9\n", r"p\.yaml:3: unknown key 'top_p'"),
    ],
)
def test_mistakes_in_a_file_are_said_with_their_line(content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text(content)
    with pytest.raises(ConfigError, match=message):
        choose(str(tmp_path / "p.yaml"), tmp_path, lambda prompt: "", lambda prompt: 0.0)
