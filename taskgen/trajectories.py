"""Recorded trajectories of agents: JSON Lines, one rollout a line, read and written one at a time.

A line is an object of one of two forms.

*turns*: ``rollout_id``, ``instance_id``, ``policy``, ``turns``, ``reward`` (a number or null), ``repo``, ``packages``.
A turn has ``role``, ``text``, ``tool_calls`` (``name``, ``arguments``, ``id``) and ``tool_results`` (``text``,
``call_id``, ``exit_code``, ``is_error``). Only ``rollout_id`` and ``turns`` must be there, and a turn's ``role``.

*messages*: a conversation as chat-completion APIs have it. ``content`` is text, null or a list of parts;
``tool_calls[].function.arguments`` is JSON as a string; an answer is a message of role ``tool`` with ``tool_call_id``.
Parts of type ``tool_use`` and ``tool_result`` are read, too.

Keys that are not known are kept in ``extra`` of a rollout or a turn (those of calls and results are dropped).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from taskgen.atomic import replacing_file
from taskgen.errors import FormatError
from taskgen.types import Role, Rollout, ToolCall, ToolResult, Turn

_ROLES: tuple[Role, ...] = get_args(Role)
#: Names of roles that mean the same.
_ROLE_ALIASES = {"developer": "system", "function": "tool", "ipython": "tool"}
_ROLLOUT_KEYS = frozenset({"rollout_id", "instance_id", "policy", "turns", "messages", "reward", "repo", "packages"})
_TURN_KEYS = frozenset({"role", "text", "content", "tool_calls", "tool_results", "tool_call_id"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line of a file: its number from 1, its bytes, its JSON object, the rollout that it is, and the bytes read so
    far. ``data`` ends with a line feed."""

    number: int
    data: bytes
    record: dict[str, Any]
    rollout: Rollout
    n_bytes: int


def read_rollouts(path: Path) -> Iterator[Rollout]:
    """The rollouts of a JSON Lines file; blank lines are skipped. Raises FormatError as ``read_lines`` does."""
    return (line.rollout for line in read_lines(path))


def read_lines(path: Path) -> Iterator[Line]:
    """The lines of a JSON Lines file of rollouts, one at a time.

    Raises:
        FormatError: the file cannot be read, or a line is no rollout: ``file:line`` and what is wrong there.
    """
    ids: dict[str, int] = {}
    done = 0
    try:
        with path.open("rb") as file:
            for number, data in enumerate(file, 1):
                done += len(data)
                if not data.strip():
                    continue
                record = _decoded(data, f"{path}:{number}")
                rollout = to_rollout(record, f"{path}:{number}")
                if (before := ids.setdefault(rollout.rollout_id, number)) != number:
                    raise FormatError(f"{path}:{number}: rollout_id {rollout.rollout_id!r} is that of line {before}")
                yield Line(
                    number=number, data=data.rstrip(b"\r\n") + b"\n", record=record, rollout=rollout, n_bytes=done
                )
    except OSError as error:
        raise FormatError(f"{path} cannot be read: {error.strerror}") from error


def write_rollouts(path: Path, rollouts: Iterable[Rollout]) -> int:
    """Write a file of the form *turns*, which appears whole or not at all. Returns how many rollouts it has."""
    n = 0
    with replacing_file(path) as scratch, scratch.open("w", encoding="utf-8") as file:
        for n, rollout in enumerate(rollouts, 1):  # noqa: B007 - the number is what is returned
            file.write(dump(to_record(rollout)) + "\n")
    return n


def dump(record: Mapping[str, Any]) -> str:
    """A record as a line of JSON. Lone surrogates, which models do write, stay escaped: UTF-8 has none."""
    text = json.dumps(record, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(record)
    return text


def to_record(rollout: Rollout) -> dict[str, Any]:
    """The JSON object of a rollout, in the form *turns*."""
    return {
        "rollout_id": rollout.rollout_id,
        "instance_id": rollout.instance_id,
        "policy": rollout.policy,
        "reward": rollout.reward,
        "repo": rollout.repo,
        "packages": list(rollout.packages),
        "turns": [_turn_record(turn) for turn in rollout.turns],
        **rollout.extra,
    }


def _turn_record(turn: Turn) -> dict[str, Any]:
    calls = [{"id": c.id, "name": c.name, "arguments": dict(c.arguments)} for c in turn.tool_calls]
    results = [
        {"call_id": r.call_id, "text": r.text, "exit_code": r.exit_code, "is_error": r.is_error}
        for r in turn.tool_results
    ]
    return {"role": turn.role, "text": turn.text, "tool_calls": calls, "tool_results": results, **turn.extra}


def to_rollout(record: Mapping[str, Any], where: str) -> Rollout:
    """A decoded line as a rollout. ``where``: ``file:line``, for messages. Raises FormatError."""
    form = next((key for key in ("turns", "messages") if key in record), None)
    if form is None:
        raise FormatError(f"{where}: no rollout: it has neither 'turns' nor 'messages'", hint="see docs/monitor.md")
    turns = _list(record, form, where)
    if form == "turns" and "rollout_id" not in record:
        raise FormatError(f"{where}: 'rollout_id' is missing")
    reward = record.get("reward")
    if reward is not None and not _is_number(reward):
        raise FormatError(f"{where}: 'reward' must be a number or null, not {_shown(reward)}")
    packages = _list(record, "packages", where)
    if not all(isinstance(name, str) for name in packages):
        raise FormatError(f"{where}: 'packages' must be a list of strings, not {_shown(packages)}")
    return Rollout(
        rollout_id=_text(record, "rollout_id", where) or where,
        instance_id=_text(record, "instance_id", where),
        policy=_text(record, "policy", where),
        turns=tuple(_turn(turn, f"{where}: {form}[{i}]") for i, turn in enumerate(turns)),
        reward=None if reward is None else float(reward),
        repo=_text(record, "repo", where),
        packages=tuple(packages),
        extra={key: value for key, value in record.items() if key not in _ROLLOUT_KEYS},
    )


def _turn(value: object, where: str) -> Turn:
    record = _object(value, where)
    role = _role(record.get("role"), where)
    calls = [_call(call, f"{where}.tool_calls[{i}]") for i, call in enumerate(_list(record, "tool_calls", where))]
    results = [
        _result(result, f"{where}.tool_results[{i}]") for i, result in enumerate(_list(record, "tool_results", where))
    ]
    text, more_calls, more_results = _content(record.get("content", record.get("text")), where)
    if role == "tool" and text and not results:
        results.append(ToolResult(text=text, call_id=_text(record, "tool_call_id", where)))
        text = ""
    return Turn(
        role=role,
        text=text,
        tool_calls=(*calls, *more_calls),
        tool_results=(*results, *more_results),
        extra={key: value for key, value in record.items() if key not in _TURN_KEYS},
    )


def _role(value: object, where: str) -> Role:
    name = _ROLE_ALIASES.get(value, value) if isinstance(value, str) else None
    for role in _ROLES:
        if role == name:
            return role
    raise FormatError(f"{where}: 'role' must be one of {', '.join(_ROLES)}, not {_shown(value)}")


def _content(value: object, where: str) -> tuple[str, list[ToolCall], list[ToolResult]]:
    """The text of a message, and the calls and results that are parts of it."""
    if value is None or isinstance(value, str):
        return value or "", [], []
    if not isinstance(value, list):
        raise FormatError(f"{where}: 'content' must be text, null or a list of parts, not {_shown(value)}")
    texts: list[str] = []
    calls: list[ToolCall] = []
    results: list[ToolResult] = []
    for i, part in enumerate(value):
        at = f"{where}.content[{i}]"
        if isinstance(part, str):
            texts.append(part)
            continue
        record = _object(part, at)
        if record.get("type") == "tool_use":
            calls.append(_call({**record, "arguments": record.get("input")}, at))
        elif record.get("type") == "tool_result":
            inner, _, _ = _content(record.get("content"), at)
            is_error = record.get("is_error") is True
            results.append(ToolResult(text=inner, call_id=_text(record, "tool_use_id", at), is_error=is_error))
        else:  # images and the like have no text
            texts.append(_text(record, "text", at))
    return "\n".join(texts), calls, results


def _call(value: object, where: str) -> ToolCall:
    record = _object(value, where)
    body = _object(record["function"], f"{where}.function") if "function" in record else record
    name = body.get("name")
    if not isinstance(name, str) or not name:
        raise FormatError(f"{where}: 'name' must be a tool's name, not {_shown(name)}")
    arguments = body.get("arguments")
    if isinstance(arguments, str):
        arguments = _arguments(arguments)
    elif arguments is None:
        arguments = {}
    elif not isinstance(arguments, dict):
        raise FormatError(f"{where}: 'arguments' must be an object or JSON as a string, not {_shown(arguments)}")
    return ToolCall(name=name, arguments=arguments, id=_text(record, "id", where))


def _arguments(text: str) -> dict[str, Any]:
    """What a policy wrote is data even where it is no JSON: it must not make a file unreadable."""
    try:
        value = json.loads(text, strict=False)
    except (ValueError, RecursionError):
        return {"raw": text}
    return value if isinstance(value, dict) else {"raw": text}


def _result(value: object, where: str) -> ToolResult:
    record = _object(value, where)
    code = record.get("exit_code")
    if code is not None and (not isinstance(code, int) or isinstance(code, bool)):
        raise FormatError(f"{where}: 'exit_code' must be an integer or null, not {_shown(code)}")
    is_error = record.get("is_error", False)
    if not isinstance(is_error, bool):
        raise FormatError(f"{where}: 'is_error' must be true or false, not {_shown(is_error)}")
    return ToolResult(
        text=_text(record, "text", where), call_id=_text(record, "call_id", where), exit_code=code, is_error=is_error
    )


# --- Values of JSON ---------------------------------------------------------------------------------


def _decoded(data: bytes, where: str) -> dict[str, Any]:
    try:
        value = json.loads(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise FormatError(f"{where}: no UTF-8: byte {error.start} is {data[error.start]:#04x}") from error
    except RecursionError as error:
        raise FormatError(f"{where}: nested too deep") from error
    except ValueError as error:
        raise FormatError(f"{where}: no JSON: {error}", hint="one JSON object a line") from error
    return _object(value, where)


def _object(value: object, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise FormatError(f"{where}: must be an object, not {_shown(value)}")
    return value


def _list(record: Mapping[str, Any], key: str, where: str) -> list[Any]:
    value = record.get(key)
    if value is not None and not isinstance(value, list):
        raise FormatError(f"{where}: '{key}' must be a list, not {_shown(value)}")
    return value or []


def _text(record: Mapping[str, Any], key: str, where: str) -> str:
    value = record.get(key)
    if value is not None and not isinstance(value, str):
        raise FormatError(f"{where}: '{key}' must be text, not {_shown(value)}")
    return value or ""


def _is_number(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def _shown(value: object) -> str:
    return f"{type(value).__name__} {json.dumps(value)[:60]}" if value is not None else "null"
