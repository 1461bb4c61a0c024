"""Tool calls of agents: which of them run commands, run code, or read, write and search files."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from taskgen.monitor import edits, network
from taskgen.monitor.machine import Machine
from taskgen.monitor.tables import Access
from taskgen.types import Rollout, ToolCall

_PATHS = (
    "path",
    "file_path",
    "filepath",
    "filename",
    "file",
    "target_file",
    "relative_workspace_path",
    "notebook_path",
)
_TEXTS = ("file_text", "content", "contents", "text", "new_source", "code_edit")
_OLD = ("old_str", "old_string", "old_text", "old", "search", "find")
_NEW = ("new_str", "new_string", "new_text", "new", "replace", "replacement")
_COMMANDS = ("command", "cmd", "commands", "script", "bash_command", "input", "code", "raw", "keystrokes")
_SHELL = re.compile(r"bash|shell|sh$|terminal|command|exec|run|console|process|submit", re.I)
_PYTHON = re.compile(r"python|jupyter|notebook|ipython|code_interpreter", re.I)
_WEB = re.compile(r"web|browse|fetch_url|url|http|search_engine|internet", re.I)
_LISTS = re.compile(r"^(?:ls|list|glob|find|tree|dir)|list_|_files|find_", re.I)
_FENCE = re.compile(r"^```(bash|sh|shell|console|python)\s*\n(.*?)^```", re.MULTILINE | re.DOTALL)


def calls_of(rollout: Rollout) -> Iterator[tuple[int, int, ToolCall]]:
    """(turn, number of the call in it, call). Where no turn has calls: the fenced commands of agents that act by
    text."""
    by_text = not any(turn.tool_calls for turn in rollout.turns)
    for i, turn in enumerate(rollout.turns):
        if turn.role != "assistant":
            continue
        for j, call in enumerate(turn.tool_calls):
            yield i, j, call
        if by_text:
            for j, block in enumerate(_FENCE.finditer(turn.text)):
                name = "python" if block[1] == "python" else "bash"
                yield i, j, ToolCall(name=name, arguments={"command": block[2]})


def follow(machine: Machine, call: ToolCall) -> None:
    """Follow what a call does."""
    arguments = call.arguments
    if machine.fresh_shells or _repeats_cd(machine, arguments):
        machine.cwd = ""
    path = _one(arguments, _PATHS)
    machine.command = f"{call.name} {path}".strip()
    command = arguments.get("command")
    if isinstance(command, str) and command in (
        "view",
        "create",
        "str_replace",
        "insert",
        "undo_edit",
        "edit",
        "delete",
    ):
        _editor(machine, command, path, arguments)
    elif (patch := _patch(arguments)) is not None:
        edits.apply_patch(machine, patch)
    elif path and any(key in arguments for key in ("edits", *_OLD, *_NEW)):
        _replaces(machine, path, arguments)
    elif path and any(key in arguments for key in _TEXTS):
        edits.write(machine, path, _one(arguments, _TEXTS))
    elif _PYTHON.search(call.name) and (
        code := _one(arguments, ("code", "command", "source", "input", "script", "raw"))
    ):
        machine.command = code[:1000]
        machine.run_python(machine, code)
    elif _WEB.search(call.name) and (url := _one(arguments, ("url", "query", "address"))):
        network.fetch(machine, url, by=call.name)
    elif (words := _words(arguments)) is not None:
        machine.run_words(machine, words)
    elif (text := _one(arguments, _COMMANDS)) and (_SHELL.search(call.name) or not path):
        machine.command = text[:1000]
        workdir = _one(arguments, ("workdir", "cwd", "working_directory"))
        if workdir:
            machine.cwd = machine.resolve(workdir) if workdir.startswith("/") else workdir
            machine.cwd = "" if machine.cwd == "." else machine.cwd
        machine.run_shell(machine, text)
    elif path or "pattern" in arguments:
        _looks(machine, call.name, path, arguments)


def _repeats_cd(machine: Machine, arguments: Mapping[str, Any]) -> bool:
    """Whether a command goes into the folder where the shell would be already: then shells do not last."""
    words = _one(arguments, _COMMANDS).split(None, 2)
    target = words[1].rstrip("/;") if len(words) > 1 and words[0] == "cd" else ""
    if target and not target.startswith(("/", ".", "~")) and f"/{machine.cwd}".endswith(f"/{target}"):
        machine.fresh_shells = True
    return machine.fresh_shells


def _one(arguments: Mapping[str, Any], keys: tuple[str, ...]) -> str:
    """The first of several arguments that is text, or ''."""
    return next((value for key in keys if isinstance(value := arguments.get(key), str) and value), "")


def _words(arguments: Mapping[str, Any]) -> list[str] | None:
    for key in ("command", "cmd", "argv", "args"):
        value = arguments.get(key)
        if isinstance(value, list) and value and all(isinstance(word, str) for word in value):
            return list(value)
    return None


def _patch(arguments: Mapping[str, Any]) -> str | None:
    for key in ("patch", "diff", "input", "raw", "patchText"):
        value = arguments.get(key)
        if isinstance(value, str) and (value.lstrip().startswith(("*** Begin Patch", "diff --git ", "--- "))):
            return value
    return None


def _editor(machine: Machine, command: str, path: str, arguments: Mapping[str, Any]) -> None:
    if command == "view":
        machine.read(path)
    elif command == "create":
        edits.write(machine, path, _one(arguments, _TEXTS))
    elif command in ("str_replace", "edit"):
        edits.replace(machine, path, _one(arguments, _OLD), _one(arguments, _NEW))
    elif command == "insert":
        text = _one(arguments, (*_NEW, "insert_text", *_TEXTS))
        edits.replace(machine, path, "", text)
    elif command == "delete":
        edits.remove(machine, path)


def _replaces(machine: Machine, path: str, arguments: Mapping[str, Any]) -> None:
    changes = arguments.get("edits")
    for change in changes if isinstance(changes, list) else [arguments]:
        if isinstance(change, dict):
            edits.replace(machine, path, _one(change, _OLD), _one(change, _NEW))


def _looks(machine: Machine, name: str, path: str, arguments: Mapping[str, Any]) -> None:
    """Tools that view, list or search."""
    included = _one(arguments, ("include", "glob", "pattern" if _LISTS.search(name) else "include"))
    if re.search(r"delete|remove", name, re.I):
        edits.remove(machine, path)
    elif _LISTS.search(name):
        machine.touch(
            Access.LIST, f"{path}/{included}".strip("/") if included and not path.startswith("/") else path or "."
        )
    else:
        machine.read(path or ".")
        if included:
            machine.touch(Access.READ, included)
