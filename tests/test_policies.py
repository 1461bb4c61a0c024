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
from taskgen.policies.controls import GoldPolicy, NullPolicy, ScriptedPolicy, Strength
from taskgen.policies.endpoint import EndpointConfig, EndpointPolicy
from taskgen.policies.policy import Completion, Form, Prompt, Sampled, Sampling
from taskgen.policies.select import choose
from taskgen.types import Turn
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
    chosen = [choose(name, tmp_path, lambda prompt: "", lambda prompt: 0.0) for name in names]
    assert [found.policy.name for found in chosen] == ["null", "gold", "org/model", "scripted"]
    assert chosen[-1].sampling.max_tokens == 9
    for found in chosen:
        found.policy.close()


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
        ("kind: oracle\n", "kind: must be one of scripted, local, openai, found 'oracle'"),
        ("kind: scripted\nsolves: 2.0\n", r"p\.yaml:2: solves"),
        ("kind: openai\nmodel: m\nendpoint: http://x\nmodle: n\n", r"p\.yaml:4: unknown key 'modle'"),
        ("kind: local\nsampling:\n  top_p: 0.9\n", r"p\.yaml:3: unknown key 'top_p'"),
    ],
)
def test_mistakes_in_a_file_are_said_with_their_line(content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text(content)
    with pytest.raises(ConfigError, match=message):
        choose(str(tmp_path / "p.yaml"), tmp_path, lambda prompt: "", lambda prompt: 0.0)
