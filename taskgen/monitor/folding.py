"""Values of Python expressions that are known without running them: what obfuscation puts together is put together.

A value is text (with ``UNKNOWN`` for what is not known of it), bytes, a number, a tuple of values, a ``Ref`` to
something imported or built in, or None: not known.
"""

from __future__ import annotations

import ast
import base64
import binascii
import builtins
import bz2
import codecs
import lzma
import posixpath
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from taskgen.monitor import tables
from taskgen.monitor.machine import DECODED, UNKNOWN, Machine
from taskgen.monitor.tables import words_of

#: Nesting of expressions that is followed.
MAX_NESTING = 40
#: Elements of a sequence, and characters of a text that folding makes.
MAX_ITEMS = 4000
MAX_MADE = 200_000


@dataclass(frozen=True, slots=True)
class Ref:
    """Something imported or built in, by its full dotted name; ``FILE`` is an open file or what was read of one."""

    name: str


FILE = Ref("<file>")
Value = str | bytes | int | tuple["Value", ...] | Ref | None
_BUILTINS = frozenset(dir(builtins))
_BYTES_DECODERS: dict[str, Callable[[bytes], bytes]] = {
    "base64.b64decode": base64.b64decode, "base64.standard_b64decode": base64.b64decode,
    "base64.urlsafe_b64decode": base64.urlsafe_b64decode, "base64.decodebytes": base64.b64decode,
    "base64.b32decode": base64.b32decode, "base64.b16decode": base64.b16decode, "base64.b85decode": base64.b85decode,
    "base64.a85decode": base64.a85decode, "binascii.unhexlify": binascii.unhexlify,
    "binascii.a2b_base64": binascii.a2b_base64, "bytes.fromhex": lambda data: bytes.fromhex(data.decode("ascii")),
}  # fmt: skip
_PATH_MAKERS = words_of(
    """pathlib.Path pathlib.PurePath pathlib.PosixPath os.path.join os.path.expanduser os.path.abspath os.path.realpath
    os.path.normpath os.fspath os.fsdecode str posixpath.join"""
)


def as_text(value: Value) -> str:
    """A value as a piece of text."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, str):
        return value
    return str(value) if isinstance(value, int) else UNKNOWN


class Folder:
    """Values of expressions, given those of names."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.names: dict[str, Value] = {}

    def fold(self, node: ast.AST | None, depth: int = 0) -> Value:
        """The value of an expression."""
        if node is None or depth > MAX_NESTING:
            return None
        match node:
            case ast.Constant(value=str() | bytes() | int() as value):
                return value
            case ast.Name(id=name):
                return self._name(name)
            case ast.Attribute():
                return self._attribute(self.fold(node.value, depth + 1), node.attr)
            case ast.JoinedStr(values=parts):
                return "".join(as_text(self.fold(part, depth + 1)) for part in parts)[:MAX_MADE]
            case ast.FormattedValue(value=inner):
                return self.fold(inner, depth + 1)
            case ast.BinOp():
                return self._binary(node, depth)
            case ast.Tuple(elts=elements) | ast.List(elts=elements) | ast.Set(elts=elements):
                return tuple(self.fold(e, depth + 1) for e in elements[:MAX_ITEMS])
            case ast.ListComp() | ast.GeneratorExp():
                return self._comprehension(node, depth)
            case ast.Subscript():
                return self._subscript(node, depth)
            case ast.IfExp(body=body):
                return self.fold(body, depth + 1)
            case ast.NamedExpr(value=inner) | ast.Await(value=inner) | ast.Starred(value=inner):
                return self.fold(inner, depth + 1)
            case ast.Call():
                return self._call(node, depth)
        return None

    def dotted(self, node: ast.AST) -> str:
        """The full name that an expression refers to, or ''."""
        value = self.fold(node)
        return value.name if isinstance(value, Ref) else ""

    def _name(self, name: str) -> Value:
        if name in self.names:
            return self.names[name]
        if name == "__file__":
            return f"{UNKNOWN}/{UNKNOWN}.py"
        return Ref(name) if name in _BUILTINS else None

    def _attribute(self, owner: Value, name: str) -> Value:
        if owner is FILE:
            return FILE
        if isinstance(owner, Ref):
            full = f"{owner.name}.{name}".removeprefix("builtins.")
            if name in ("__file__", "__path__", "origin"):
                return self._file_of(owner.name)
            return Ref(full) if len(full) < 200 else None
        if isinstance(owner, str):
            if name == "parent":
                return posixpath.dirname(owner) or "."
            if name in ("name", "stem"):
                return posixpath.basename(owner)
        return None

    def _file_of(self, module: str) -> Value:
        if self.machine.project.is_twin(module):
            return f"/site-packages/{module.replace('.', '/')}/__init__.py"
        return f"{UNKNOWN}/{module.replace('.', '/')}.py"

    def _binary(self, node: ast.BinOp, depth: int) -> Value:
        left, right = self.fold(node.left, depth + 1), self.fold(node.right, depth + 1)
        if isinstance(node.op, ast.Div):
            if isinstance(left, str) or isinstance(right, str):
                return posixpath.join(as_text(left), as_text(right))
            return None
        if isinstance(node.op, ast.Add):
            return self._sum(left, right)
        if isinstance(node.op, ast.Mod) and isinstance(left, str):
            return (
                left.replace("%s", "{}").replace("%r", "{}").replace("{}", UNKNOWN)
                if right is None
                else _percent(left, right)
            )
        if isinstance(left, int) and isinstance(right, int) and abs(left) < 1 << 32 and abs(right) < 1 << 32:
            return _arithmetic(node.op, left, right)
        if isinstance(node.op, ast.Mult) and isinstance(left, str) and isinstance(right, int):
            return left * max(0, min(right, MAX_MADE // max(1, len(left))))
        return None

    def _sum(self, left: Value, right: Value) -> Value:
        if isinstance(left, bytes) and isinstance(right, bytes):
            return (left + right)[:MAX_MADE]
        if isinstance(left, tuple) and isinstance(right, tuple):
            return (left + right)[:MAX_ITEMS]
        if isinstance(left, str) or isinstance(right, str):
            return (as_text(left) + as_text(right))[:MAX_MADE]
        return left + right if isinstance(left, int) and isinstance(right, int) else None

    def _comprehension(self, node: ast.ListComp | ast.GeneratorExp, depth: int) -> Value:
        generator = node.generators[0]
        items = self.fold(generator.iter, depth + 1)
        if len(node.generators) != 1 or not isinstance(generator.target, ast.Name):
            return None
        if isinstance(items, str | bytes):
            items = tuple(items)
        if not isinstance(items, tuple):
            return None
        name, found = generator.target.id, []
        outer = self.names.get(name)
        for item in items[:MAX_ITEMS]:
            self.names[name] = item
            found.append(self.fold(node.elt, depth + 1))
        self.names[name] = outer
        return tuple(found)

    def _subscript(self, node: ast.Subscript, depth: int) -> Value:
        owner = self.fold(node.value, depth + 1)
        if owner is FILE:
            return FILE
        if isinstance(owner, Ref):
            key = self.fold(node.slice, depth + 1)
            if owner.name == "sys.argv" and isinstance(key, int) and 0 <= key < len(self.machine.argv):
                return self.machine.argv[key]
            if owner.name in ("sys.modules", "__builtins__.__dict__", "builtins.__dict__") and isinstance(key, str):
                return Ref(key)
            if owner.name.endswith(".__dict__") and isinstance(key, str):
                return Ref(f"{owner.name.removesuffix('.__dict__')}.{key}")
            return Ref(f"{owner.name}[]")
        if not isinstance(owner, str | bytes | tuple):
            return None
        try:
            if isinstance(node.slice, ast.Slice):
                part = node.slice
                bounds = [None if e is None else ast.literal_eval(e) for e in (part.lower, part.upper, part.step)]
                return owner[slice(*bounds)]
            index = self.fold(node.slice, depth + 1)
            return owner[index] if isinstance(index, int) else None
        except (IndexError, ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
            return None

    # --- Calls ----------------------------------------------------------------------------------------

    def _call(self, node: ast.Call, depth: int) -> Value:
        function = self.fold(node.func, depth + 1)
        if function is FILE:
            return FILE
        values = [self.fold(argument, depth + 1) for argument in node.args[:50]]
        if isinstance(function, Ref):
            return self._function(function.name, values)
        if isinstance(node.func, ast.Attribute):
            return self._method(self.fold(node.func.value, depth + 1), node.func.attr, values)
        return None

    def _function(self, name: str, values: list[Value]) -> Value:
        first = values[0] if values else None
        if name in ("__import__", "importlib.import_module", "importlib.__import__") and isinstance(first, str):
            return Ref(first)
        if name == "getattr" and len(values) > 1 and isinstance(values[1], str):
            return self._attribute(first, values[1])
        if name in ("open", "io.open", "codecs.open", "gzip.open") or name.endswith(".ZipFile"):
            return FILE
        if name in tables.PYTHON_DECODERS:
            return self._decode(name, values)
        if name in ("marshal.dumps", "marshal.load", "vars", "globals"):
            return Ref(f"{name}()") if name != "vars" or not isinstance(first, Ref) else Ref(f"{first.name}.__dict__")
        if name in _PATH_MAKERS:
            return posixpath.join(*(as_text(v) for v in values)) if values else "."
        if name == "chr" and isinstance(first, int):
            return chr(first) if 0 <= first < 0x110000 else None
        if name in ("bytes", "bytearray") and isinstance(first, tuple):
            return bytes(v & 0xFF for v in first if isinstance(v, int))
        if name in ("list", "tuple", "sorted", "iter", "set", "reversed") and isinstance(first, tuple | str):
            items = tuple(first)
            return items[::-1] if name == "reversed" else items
        if name in ("map",) and first == Ref("chr") and len(values) > 1 and isinstance(values[1], tuple):
            return tuple(chr(v) for v in values[1] if isinstance(v, int) and 0 <= v < 0x110000)
        if name in ("glob.glob", "glob.iglob"):
            return (as_text(first),)
        if name in ("os.listdir", "os.scandir"):
            return (UNKNOWN,)
        if name == "os.walk":
            return ((as_text(first), (UNKNOWN,), (UNKNOWN,)),)
        if name in ("os.getcwd", "os.environ.get", "os.getenv", "pathlib.Path.cwd", "shlex.quote", "input"):
            return first if name == "shlex.quote" else UNKNOWN if name != "os.getcwd" else "."
        if name in ("compile", "shlex.split", "textwrap.dedent"):
            return tuple(as_text(first).split()) if name == "shlex.split" else first
        return None

    def _decode(self, name: str, values: list[Value]) -> Value:
        first = values[0] if values else None
        made: Value = None
        if isinstance(first, str | bytes) and UNKNOWN not in as_text(first):
            data = first.encode("utf-8", "replace") if isinstance(first, str) else first
            try:
                if name == "codecs.decode":
                    how = as_text(values[1]) if len(values) > 1 else "utf-8"
                    made = codecs.decode(as_text(first), "rot13") if "rot" in how else codecs.decode(data, how)
                elif name in _BYTES_DECODERS:
                    made = _BYTES_DECODERS[name](data)
                else:
                    made = _decompressed(name, data)
            except (ValueError, LookupError, TypeError, EOFError, zlib.error, lzma.LZMAError, OSError):
                made = None
        if not isinstance(made, str | bytes):
            return FILE if first is FILE else DECODED
        text = as_text(made).strip()
        if len(text) > 3:
            self.machine.decoded.add(text)
        return made

    def _method(self, owner: Value, name: str, values: list[Value]) -> Value:
        first = values[0] if values else None
        if isinstance(owner, str | bytes) and name in ("decode", "encode"):
            return as_text(owner) if name == "decode" else as_text(owner).encode("utf-8", "replace")
        if not isinstance(owner, str):
            return None
        if name == "join" and isinstance(first, tuple):
            return owner.join(as_text(v) for v in first)[:MAX_MADE]
        if name == "replace" and len(values) > 1 and isinstance(first, str) and isinstance(values[1], str):
            return owner.replace(first, values[1])[:MAX_MADE]
        if name == "format":
            return _formatted(owner, values)
        if name == "split":
            return tuple(owner.split(first if isinstance(first, str) and first else None)[:MAX_ITEMS])
        if name in ("strip", "lower", "upper", "swapcase", "title", "resolve", "absolute", "expanduser", "as_posix"):
            return str(getattr(owner, name)()) if hasattr(owner, name) else owner
        if name in ("joinpath", "with_name", "with_suffix"):
            base = owner if name == "joinpath" else posixpath.dirname(owner)
            return (
                posixpath.join(base, *(as_text(v) for v in values)) if name != "with_suffix" else owner + as_text(first)
            )
        if name in ("glob", "rglob"):
            return (posixpath.join(owner, as_text(first)),)
        if name == "iterdir":
            return (posixpath.join(owner, UNKNOWN),)
        if name in ("read_text", "read_bytes", "open"):
            return self.machine.files.get(self.machine.resolve(owner), FILE)
        return None


def _decompressed(name: str, data: bytes) -> bytes | None:
    """What a decompressor makes of data, at most MAX_MADE of it."""
    if name == "zlib.decompress":
        return zlib.decompressobj().decompress(data, MAX_MADE)
    if name == "gzip.decompress":
        return zlib.decompressobj(31).decompress(data, MAX_MADE)
    if name == "bz2.decompress":
        return bz2.BZ2Decompressor().decompress(data, MAX_MADE)
    if name == "lzma.decompress":
        return lzma.LZMADecompressor(memlimit=64 << 20).decompress(data, MAX_MADE)
    return None


def _arithmetic(operator: ast.operator, left: int, right: int) -> int | None:
    match operator:
        case ast.Sub():
            return left - right
        case ast.BitXor():
            return left ^ right
        case ast.Mult():
            return left * right
    return None


def _percent(template: str, right: Value) -> str:
    values = list(right) if isinstance(right, tuple) else [right]
    parts = template.split("%s")
    out = [parts[0]]
    for i, part in enumerate(parts[1:]):
        out += [as_text(values[i]) if i < len(values) else UNKNOWN, part]
    return "".join(out)[:MAX_MADE]


def _formatted(template: str, values: Sequence[Value]) -> str:
    out, rest = "", template
    for value in values:
        before, mark, rest = rest.partition("{}")
        out += before + (as_text(value) if mark else "")
    return (out + rest.replace("{}", UNKNOWN))[:MAX_MADE]
