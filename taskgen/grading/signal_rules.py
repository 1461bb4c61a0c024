"""What a static scan of a patch looks for: kinds of signal, and the names behind them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class SignalKind(StrEnum):
    """Why a line is worth a look. None of them is proof: honest code may do any of this."""

    UNREADABLE = "the scan cannot read the file"
    TEST_CONFIGURATION = "changes how tests or the interpreter start"
    SHADOWS_MODULE = "takes the name of a module that tests import"
    FRAMES = "reads other frames"
    HEAP = "walks the heap"
    NATIVE = "reaches memory or native code"
    PROCESS_END = "ends the process or sends signals"
    AT_EXIT = "runs at exit"
    IMPORT_THREADS = "starts a thread at import"
    PROCESSES = "starts processes"
    IMPORT_SYSTEM = "touches the state of the import system"
    DYNAMIC_IMPORT = "imports in an unusual way"
    TRACING = "hooks the interpreter"
    TEST_FRAMEWORK = "imports a test framework"
    DYNAMIC_CODE = "runs code from data"
    FILE_READ = "reads files at import, or files of tests"
    SUBCLASSES = "searches all classes"
    MONKEY_PATCH = "changes another module's objects"
    ALWAYS_EQUAL = "objects that equal everything"
    ENVIRONMENT = "reads the environment"
    CLOCK = "changes time or chance"
    NETWORK = "uses the network"
    PROC = "names /proc"
    OPAQUE = "a long opaque literal"
    INVISIBLE = "text that is not what it looks like"
    ADDRESSES_GRADER = "speaks to whoever judges it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """A place that is worth a look. ``line`` counts from 1 in the new file (0: the file as such); ``text`` is that
    line, cut, without characters that cannot be shown."""

    kind: SignalKind
    path: str
    line: int
    text: str


_K = SignalKind
_BY_KIND: dict[SignalKind, str] = {
    _K.FRAMES: """sys._getframe sys._getframemodulename sys._current_frames sys._current_exceptions inspect.stack
        inspect.currentframe inspect.trace inspect.getouterframes inspect.getinnerframes inspect.getframeinfo
        traceback.walk_stack traceback.walk_tb traceback.extract_stack""",
    _K.HEAP: "gc.get_objects gc.get_referrers gc.get_referents tracemalloc",
    _K.NATIVE: "ctypes _ctypes cffi _cffi_backend mmap numpy.ctypeslib _testcapi _xxsubinterpreters",
    _K.PROCESS_END: """os._exit os.abort os.kill os.killpg os.execl os.execle os.execlp os.execlpe os.execv os.execve
        os.execvp os.execvpe posix nt signal faulthandler _thread.interrupt_main""",
    _K.AT_EXIT: "atexit",
    _K.PROCESSES: """subprocess _posixsubprocess os.system os.popen os.fork os.forkpty os.spawnl os.spawnle os.spawnlp
        os.spawnlpe os.spawnv os.spawnve os.spawnvp os.spawnvpe os.posix_spawn os.posix_spawnp os.startfile
        multiprocessing pty asyncio.create_subprocess_exec asyncio.create_subprocess_shell
        concurrent.futures.ProcessPoolExecutor psutil""",
    _K.IMPORT_SYSTEM: "sys.modules sys.meta_path sys.path_hooks sys.path_importer_cache site",
    _K.DYNAMIC_IMPORT: "importlib imp runpy pkgutil zipimport __import__ os.* sys.* gc.* inspect.* builtins.* pickle.*",
    _K.TRACING: """sys.settrace sys.setprofile sys.addaudithook sys.monitoring sys.excepthook sys.unraisablehook
        sys.displayhook threading.settrace threading.setprofile threading.excepthook bdb""",
    _K.TEST_FRAMEWORK: "pytest _pytest pluggy unittest nose hypothesis doctest coverage conftest",
    _K.DYNAMIC_CODE: """exec eval compile __builtins__ marshal.load marshal.loads pickle.load pickle.loads
        pickle.Unpickler _pickle pickle._Unpickler cloudpickle dill shelve joblib.load code codeop types.CodeType
        types.FunctionType""",
    _K.ENVIRONMENT: "os.environ os.environb os.getenv os.getenvb os.putenv os.unsetenv",
    _K.CLOCK: "freezegun time_machine random.seed random.setstate",
    _K.NETWORK: """socket _socket ssl urllib.request urllib3 requests http.client http.server httpx aiohttp ftplib
        smtplib poplib imaplib telnetlib xmlrpc socketserver asyncio.open_connection asyncio.start_server paramiko
        websockets""",
}  # fmt: skip
#: Ordinary members of modules named above.
_HARMLESS = "importlib.metadata importlib.resources pkgutil.extend_path"
_NAMES: dict[str, SignalKind | None] = {
    **{name: kind for kind, names in _BY_KIND.items() for name in names.split()},
    **dict.fromkeys(_HARMLESS.split()),
}

#: No name above has more.
_MAX_PARTS = 4

#: Members whose name alone tells, on whatever object.
ATTRIBUTES: dict[str, SignalKind] = {
    **dict.fromkeys(
        (
            "f_back",
            "f_locals",
            "f_globals",
            "f_builtins",
            "tb_frame",
            "gi_frame",
            "cr_frame",
            "ag_frame",
            "__globals__",
        ),
        SignalKind.FRAMES,
    ),
    "__subclasses__": SignalKind.SUBCLASSES,
}
#: Members of functions whose assignment replaces what they do.
FUNCTION_PARTS = frozenset({"__code__", "__defaults__", "__kwdefaults__"})
#: Names that are there without an import.
BUILTINS = frozenset(
    {"exec", "eval", "compile", "__import__", "__builtins__", "open", "getattr", "setattr", "delattr", "vars"}
)

THREADS = ("threading.Thread", "threading.Timer", "_thread.start_new_thread", "_thread.start_new",
           "concurrent.futures.ThreadPoolExecutor")  # fmt: skip
READERS = frozenset(
    {"open", "io.open", "io.open_code", "os.open", "codecs.open", "tokenize.open", "os.listdir", "os.scandir",
     "os.walk", "glob.glob", "glob.iglob", "linecache.getline", "linecache.getlines", "shutil.copy", "shutil.copyfile",
     "shutil.copytree", "inspect.getsource", "inspect.getsourcelines"}
)  # fmt: skip
READING_METHODS = frozenset({"open", "read_text", "read_bytes", "iterdir", "rglob"})
IMPORT_STATE = ("sys.path", "sys.modules", "sys.meta_path", "sys.path_hooks")
LIST_CHANGES = frozenset(
    {
        "append",
        "clear",
        "extend",
        "insert",
        "pop",
        "popitem",
        "remove",
        "reverse",
        "setdefault",
        "update",
        "__setitem__",
    }
)
CLOCKS = frozenset({"time", "random", "datetime", "secrets", "uuid"})

#: Files that pytest, pip or the interpreter read by themselves.
START_FILES = frozenset(
    {"conftest.py", "pytest.ini", ".pytest.ini", "tox.ini", "setup.cfg", "pyproject.toml", "sitecustomize.py",
     "usercustomize.py", "noxfile.py", ".coveragerc", "pyvenv.cfg"}
)  # fmt: skip
SHADOWED = frozenset({"pytest", "_pytest", "pluggy", "hypothesis", "numpy", "coverage", "mock"})


def kind_of(dotted: str) -> SignalKind | None:
    """The kind that a full dotted name, or the module that it is in, belongs to."""
    name = dotted.removeprefix("builtins.") if dotted != "builtins.*" else dotted
    name = ".".join(name.split(".", _MAX_PARTS)[:_MAX_PARTS])
    while name:
        if name in _NAMES:
            return _NAMES[name]
        name = name.rpartition(".")[0]
    return None
