"""What rules say of a program and its words: wrappers are unwrapped, interpreters followed, paths looked at.

Returns what a program would print where that is known: of ``echo``, ``printf``, ``cat`` of known files, decoders, and
of ``find`` the names it looks for, so that what is piped into ``xargs`` or ``while read`` is known, too.
"""

from __future__ import annotations

import codecs
import posixpath
import re
from collections.abc import Callable, Sequence

from taskgen.monitor import edits, network, tables
from taskgen.monitor.file_programs import decode, in_place, run_files
from taskgen.monitor.git_commands import run_git
from taskgen.monitor.machine import MAX_TEXT, UNKNOWN, Machine
from taskgen.monitor.tables import Access

_PRINTF = re.compile(r"%[-\d.]*[sdqbi]|%%")


def run_words(machine: Machine, argv: Sequence[str], stdin: str | None = None) -> str | None:
    """Follow a command that is a list of words."""
    with machine.deeper() as may:
        if not may or not argv:
            return None
        words = list(argv)
        name = posixpath.basename(words[0])
        if "/" in words[0]:
            _run_path(machine, words[0])
        return _dispatch(machine, name, words[1:], stdin)


def _dispatch(machine: Machine, name: str, words: list[str], stdin: str | None) -> str | None:
    if (special := _SPECIAL.get(name)) is not None:
        return special(machine, words, stdin)
    if name in tables.WRAPPERS:
        return _wrapped(machine, name, words, stdin)
    if (name in tables.RUNNERS and "run" in words[:2]) or (name in ("conda", "mamba") and "run" in words):
        rest = words[words.index("run") + 1 :]
        while rest and rest[0].startswith("-"):
            rest = rest[2:] if rest[0] in ("-n", "--name", "--with", "-p", "--python", "-m", "--env") else rest[1:]
        return run_words(machine, rest, stdin) if rest else None
    if name in tables.SHELLS:
        return _shell(machine, words, stdin)
    if tables.PYTHON.match(name):
        return _python(machine, words, stdin)
    if re.fullmatch(r"pip[\d.]*", name):
        name = "pip"
    if name in tables.DECOMPILERS:
        machine.hit("decompile", f"{name} {' '.join(words)}"[:120], name)
        return None
    if name in tables.PACKAGE_MANAGERS:
        network.run_manager(machine, name, words)
        return None
    if name in tables.FETCHERS:
        network.run_fetcher(machine, name, words)
        return None
    if name in tables.OTHER_LANGUAGES:
        return _other_language(machine, name, words)
    if name in tables.DECODERS and (decoded := decode(machine, name, words, stdin)) is not None:
        return decoded
    return run_files(machine, name, words, stdin)


def _run_path(machine: Machine, path: str) -> None:
    text = machine.files.get(machine.resolve(path))
    if text is None:
        return
    if text.startswith("#!") and "python" in text.partition("\n")[0]:
        machine.run_python(machine, text)
    elif not path.endswith(".py"):
        machine.run_shell(machine, text)


def _wrapped(machine: Machine, name: str, words: list[str], stdin: str | None) -> str | None:
    rest = list(words)
    if name == "command" and rest[:1] and rest[0] in ("-v", "-V"):
        return None
    if name in ("nohup", "setsid"):
        machine.hit("background", f"{name} {' '.join(words)}"[:100], name)
    while rest and ((rest[0].startswith("-") and len(rest[0]) > 1) or ("=" in rest[0] and name in ("env", "sudo"))):
        word = rest.pop(0)
        if name == "env" and word in ("-S", "--split-string") and rest:
            return machine.run_shell(machine, " ".join(rest), stdin)
        if word in tables.WRAPPER_OPTIONS and rest and name != "time":
            rest.pop(0)
    rest = rest[tables.WRAPPERS[name] :]
    return run_words(machine, rest, stdin) if rest else None


def _shell(machine: Machine, words: list[str], stdin: str | None) -> str | None:
    rest = list(words)
    while rest and rest[0][:1] in "-+" and len(rest[0]) > 1:
        option = rest.pop(0)
        if option.startswith("-") and not option.startswith("--") and "c" in option:
            if not rest:
                return None
            for i, word in enumerate(rest[1:]):
                machine.variables[str(i)] = word
            return machine.run_shell(machine, rest[0], stdin)
        if option in ("-o", "-O", "--rcfile", "--init-file") and rest:
            rest.pop(0)
    if rest and rest[0] not in ("-", "/dev/stdin"):
        text = machine.read(rest[0])
        for i, word in enumerate(rest[1:], 1):
            machine.variables[str(i)] = word
        return machine.run_shell(machine, text) if text is not None else None
    return _run_input(machine, stdin, "sh")


def _run_input(machine: Machine, stdin: str | None, what: str) -> str | None:
    """What is piped into an interpreter is run by it."""
    if stdin is None:
        return None
    return machine.run_python(machine, stdin) if what == "python" else machine.run_shell(machine, stdin)


def _python(machine: Machine, words: list[str], stdin: str | None) -> str | None:
    rest = list(words)
    while rest and rest[0].startswith("-") and len(rest[0]) > 1:
        option = rest.pop(0)
        if not option.startswith("--") and option.endswith("c"):
            return _python_text(machine, rest[0], ["-c", *rest[1:]]) if rest else None
        if not option.startswith("--") and option.endswith("m"):
            return _module(machine, rest[0], rest[1:], stdin) if rest else None
        if option in ("-W", "-X", "--check-hash-based-pycs") and rest:
            rest.pop(0)
    if rest and rest[0] not in ("-", "/dev/stdin"):
        text = machine.read(rest[0])
        return _python_text(machine, text, rest) if text is not None else None
    return _run_input(machine, stdin, "python")


def _python_text(machine: Machine, text: str, argv: list[str]) -> str | None:
    outer = machine.argv
    machine.argv = tuple(argv)
    try:
        return machine.run_python(machine, text)
    finally:
        machine.argv = outer


def _module(machine: Machine, module: str, words: list[str], stdin: str | None) -> str | None:
    """``python -m MODULE``."""
    if module.partition(".")[0] in tables.DECOMPILER_MODULES:
        machine.hit("decompile", f"python -m {module}", module, "No module named")
    elif module in (
        "dis",
        "marshal",
        "zipfile",
        "tarfile",
        "gzip",
        "tokenize",
        "ast",
        "json.tool",
        "base64",
        "pickletools",
    ):
        for word in words:
            if not word.startswith("-"):
                machine.read(word)
                if module == "dis" and word.endswith((".pyc", ".pyo")):
                    machine.hit("decompile", f"python -m dis {word}", posixpath.basename(word))
    elif module == "inspect":
        _inspect(machine, words)
    elif module == "pydoc" and "-w" not in words:
        return None
    else:
        return _dispatch(machine, module, words, stdin) if module in ("pip", "uv", "pipx", "easy_install") else None
    return None


def _inspect(machine: Machine, words: Sequence[str]) -> None:
    for word in words:
        module = word.partition(":")[0]
        if machine.project.is_twin(module):
            machine.hit("installed-copy", f"source of {word}", module)
        elif machine.project.is_module(module):
            machine.hit("own-source", f"python -m inspect {word}", module)


def _other_language(machine: Machine, name: str, words: list[str]) -> str | None:
    if name == "perl" and any(re.fullmatch(r"-\w*i[\w.]*", word) for word in words):
        return in_place(machine, words)
    if any(re.fullmatch(r"-\w*[eEpr]\w*|--eval|eval", word) for word in words):
        machine.hit("unread-code", f"{name} {' '.join(words)}"[:100], name)
    for word in words:
        if not word.startswith("-") and "/" in word and " " not in word:
            machine.read(word)
    return None


# --- Programs with meanings of their own ---------------------------------------------------------------


def _echo(machine: Machine, words: list[str], stdin: str | None) -> str | None:
    while words and re.fullmatch(r"-[neE]+", words[0]):
        if "e" in words.pop(0):
            words = [codecs.decode(w.encode("latin-1", "backslashreplace"), "unicode_escape", "replace") for w in words]
    return " ".join(words) + "\n"


def _printf(machine: Machine, words: list[str], stdin: str | None) -> str | None:
    if words[:1] == ["--"]:
        words = words[1:]
    if not words or words[0] == "-v":
        return None
    data = words[0].encode("latin-1", "backslashreplace")
    template = codecs.decode(data, "unicode_escape", "replace").replace("\0", "") if b"\\" in data else words[0]
    values, out = words[1:], []
    fields = max(1, sum(m[0] != "%%" for m in _PRINTF.finditer(template)))
    for start in range(0, max(1, len(values)), fields):
        part = iter(values[start : start + fields])
        out.append(_PRINTF.sub(lambda m: "%" if m[0] == "%%" else next(part, ""), template))  # noqa: B023 - used at once
    return "".join(out)[:MAX_TEXT]


def _cd(machine: Machine, words: list[str], stdin: str | None) -> str | None:
    target = next((word for word in words if not word.startswith("-") or word == "-"), "~")
    outer = machine.cwd
    machine.cwd = machine.variables.get("OLDPWD", "") if target == "-" else machine.resolve(target)
    machine.cwd = "" if machine.cwd == "." else machine.cwd
    machine.variables["OLDPWD"] = outer
    return ""


def _eval(machine: Machine, words: list[str], stdin: str | None) -> str | None:
    text = " ".join(words)
    return machine.run_shell(machine, text, stdin)


def _source(machine: Machine, words: list[str], stdin: str | None) -> str | None:
    text = machine.read(words[0]) if words else None
    return machine.run_shell(machine, text, stdin) if text is not None else None


def _export(machine: Machine, words: list[str], stdin: str | None) -> str | None:
    for word in words:
        name, mark, value = word.partition("=")
        if mark:
            machine.variables[name] = value
            if name in ("LD_PRELOAD", "BASH_ENV", "PYTHONSTARTUP"):
                machine.hit("start-files", f"sets {name}", name)
    return ""


def _xargs(machine: Machine, words: list[str], stdin: str | None) -> str | None:
    rest, mark = list(words), ""
    while rest and rest[0].startswith("-"):
        option = rest.pop(0)
        if option in ("-I", "-J", "--replace") and rest:
            mark = rest.pop(0)
        elif option.startswith("-I"):
            mark = option[2:]
        elif option in tables.WRAPPER_OPTIONS and rest:
            rest.pop(0)
    given = (stdin if stdin is not None else UNKNOWN).split()[:50] or [UNKNOWN]
    if not rest:
        return " ".join(given)
    if mark:
        for value in given[:8]:
            run_words(machine, [word.replace(mark, value) for word in rest], None)
        return None
    return run_words(machine, [*rest, *given], None)


def _find(machine: Machine, words: list[str], stdin: str | None) -> str | None:
    """What find looks for is listed; its -exec is followed with those names; -delete removes them."""
    roots = []
    for word in words:
        if word.startswith(("-", "(", "!")) and word not in ("-H", "-L", "-P"):
            break
        if not word.startswith("-"):
            roots.append(word)
    roots = roots or ["."]
    names = _wanted(words)
    paths = [f"{root.rstrip('/')}/{name}" if name else root for root in roots for name in names or [""]]
    elsewhere = any(root.startswith(("/", "~")) and machine.resolve(root).startswith(("/", "~")) for root in roots)
    if elsewhere and any(machine.project.is_named_in(name) for name in names):
        machine.hit("search-copies", f"find {' '.join(words)}"[:120], "find")
    if "-delete" in words:
        for path in paths if names else []:
            edits.remove(machine, path)
        return ""
    for i, word in enumerate(words):
        if word in ("-exec", "-execdir", "-ok"):
            end = next((j for j in range(i, len(words)) if words[j] in (";", "+")), len(words))
            for path in paths[:8]:
                run_words(machine, [part.replace("{}", path) for part in words[i + 1 : end]], None)
    if not any(word.startswith("-exec") for word in words):
        for path in paths:
            machine.touch(Access.LIST, path)
    return "".join(f"{path}\n" for path in paths) if names else None


def _wanted(words: Sequence[str]) -> list[str]:
    """Names that find looks for; those behind -not or before -prune are left out."""
    found: list[str] = []
    for i, word in enumerate(words[:-1]):
        if word in ("-name", "-iname", "-path", "-ipath", "-wholename", "-regex"):
            negated = i > 0 and words[i - 1] in ("-not", "!")
            pruned = words[i + 2 : i + 3] == ["-prune"] and "-exec" not in words
            if not negated and not pruned:
                found.append(words[i + 1].lstrip("./"))
    return found


def _ls(machine: Machine, words: list[str], stdin: str | None) -> str | None:
    for word in words or ["."]:
        if not word.startswith("-"):
            machine.touch(Access.LIST, word)
    return None


def _dd(machine: Machine, words: list[str], stdin: str | None) -> str | None:
    for word in words:
        key, _, path = word.partition("=")
        if key == "if":
            machine.read(path)
        elif key == "of":
            edits.write(machine, path, None)
    return None


def _git(machine: Machine, words: list[str], stdin: str | None) -> str | None:
    run_git(machine, words, stdin)
    return None


def _read_nothing(machine: Machine, words: list[str], stdin: str | None) -> str | None:
    return "" if words[:1] != ["-"] else None


def _patch(machine: Machine, words: list[str], stdin: str | None) -> str | None:
    paths = [word for word in words if not word.startswith("-")]
    text = stdin
    if "-i" in words and paths:
        text = machine.read(paths[-1])
    if text is not None:
        edits.apply_patch(machine, text)
    return None


def _apply_patch(machine: Machine, words: list[str], stdin: str | None) -> str | None:
    edits.apply_patch(machine, words[0] if words else stdin or "")
    return ""


_Special = Callable[[Machine, list[str], "str | None"], "str | None"]
_SPECIAL: dict[str, _Special] = {
    "echo": _echo, "printf": _printf, "cd": _cd, "pushd": _cd, "chdir": _cd, "eval": _eval, "source": _source,
    ".": _source, "export": _export, "declare": _export, "local": _export, "typeset": _export, "readonly": _export,
    "xargs": _xargs, "parallel": _xargs, "find": _find, "ls": _ls, "dd": _dd, "git": _git, "true": _read_nothing,
    ":": _read_nothing, "false": _read_nothing, "sleep": _read_nothing, "apply_patch": _apply_patch, "patch": _patch,
}  # fmt: skip
