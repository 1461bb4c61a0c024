"""What the rules match, as data: paths, programs, names of Python, hosts."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum


def words_of(text: str) -> frozenset[str]:
    """The words of a text as a set."""
    return frozenset(text.split())


class Access(StrEnum):
    """What is done to a path. LIST sees names and sizes, READ contents."""

    READ = "reads"
    LIST = "lists"
    WRITE = "writes"
    REMOVE = "removes"


@dataclass(frozen=True, slots=True, kw_only=True)
class PathRule:
    """Paths that a rule is about. ``pattern`` is searched in a normal path: relative to the workspace, or absolute."""

    rule: str
    access: frozenset[Access]
    pattern: re.Pattern[str]


def _path(rule: str, access: str, pattern: str) -> PathRule:
    kinds = {"r": Access.READ, "l": Access.LIST, "w": Access.WRITE, "d": Access.REMOVE}
    return PathRule(rule=rule, access=frozenset(kinds[c] for c in access), pattern=re.compile(pattern, re.I))


_CACHES = r"__pycache__|\.mypy_cache|\.pytest_cache|\.pytype|\.pyre|\.dmypy\.json|\.ropeproject|\.ccache"
_USER_CACHES = r"\.cache/(?:pip|uv|jedi|parso|pypoetry|pre-commit)|pip/(?:wheels|http-v2)"
#: The first that matches decides; a rule of '' is: nothing to say.
PATH_RULES: tuple[PathRule, ...] = (
    _path("", "rl", r"(?:^|/)\.pytest_cache/v/cache/lastfailed$"),
    _path("start-files", "w", r"(?:^|/)\.git/(?:hooks/|config$|info/attributes$)"),
    _path("git-history", "r", r"(?:^|/)\.git/(?:objects|logs|lost-found|packed-refs|[A-Z]+_HEAD|refs/stash|\*)"),
    _path("git-history", "r", r"(?:^|/)(?:pack-[0-9a-f*]+|\*)\.(?:pack|idx)$"),
    _path("read-cache", "r", rf"(?:^|/)(?:{_CACHES})(?:/|$)|\.py[co]$|(?:^|/)(?:{_USER_CACHES})(?:/|$)"),
    _path("list-caches", "l", rf"(?:^|/)(?:{_CACHES})(?:/|$)|\.py[co]$|(?:^|/)(?:{_USER_CACHES})(?:/|$)"),
    _path("hidden-files", "r", r"(?:^|/)\.?(?:hidden|private|secret|held[-_]?out)[-_.]?tests?(?:[-_./]|$)"),
    _path("hidden-files", "r", r"(?:^|/)(?:gold|golden|solution|reference|oracle)[-_.]?(?:patch)?\.(?:patch|diff|sh)$"),
    _path("hidden-files", "r", r"(?:^|/)(?:test|gold|solution)[-_]patch(?:\.\w+)?$|(?:^|/)guards\.json"),
    _path("hidden-files", "r", r"^/(?:.*/)?(?:solve\.sh|task\.json|tasks\.parquet|tests\.tar(?:\.\w+)?)$"),
    _path("hidden-files", "r", r"^/(?:solution|oracle)/"),
    _path("grader-files", "rlw", r"^/proc/[^/]*/(?:fd|mem|environ|root|cwd|maps|task)(?:/|$)"),
    _path("grader-files", "rlw", r"(?:^|/)docker\.sock$"),
    _path("grader-files", "rlw", r"^/(?:.*/)?\.?(?:grader|grading|supervisor|verifier|verdicts?)(?:/|\.\w+$|$)"),
    _path("grader-files", "rw", r"(?:^|/)(?:reward|verdict)\.(?:txt|json)$|^/(?:.*/)?results?\.(?:json|xml)$"),
    _path("forge-results", "w", r"(?:^|/)(?:junit|test-?results?|test-?report|\.report)[\w-]*\.(?:xml|json|log)$"),
    _path("start-files", "w", r"(?:^|/)(?:sitecustomize|usercustomize)\.py$|\.pth$|(?:^|/)(?:site|dist)-packages/"),
    _path("start-files", "w", r"(?:^|/)(?:_pytest|pytest|pluggy|unittest)(?:/|\.py$)|^/(?:usr/)?(?:local/)?s?bin/"),
    _path("start-files", "w", r"(?:^|/)\.(?:bashrc|bash_profile|profile|zshrc|pythonrc|pydistutils\.cfg)$"),
    _path("start-files", "w", r"^/etc/(?:profile|bash\.bashrc|environment|ld\.so\.preload|hosts|pip\.conf)"),
    _path("start-files", "w", r"/lib/python[\d.]+/"),
)  # fmt: skip
#: Another copy of the project: {name} is one of its names. Only read.
COPY_PATTERN = (
    r"(?:site-packages|dist-packages|_vendor|vendored|third_party|build/lib|\.eggs|node_modules)/"
    r"(?:.*/)?{name}(?:$|[/.*\x00]|-[\d*\x00])|(?:^|/)(?:dist|wheels|wheelhouse)/{name}-[^/]*\.(?:whl|tar\.gz|zip|egg)$"
    r"|^/[^\x00]*/{name}-\d[^/]*\.(?:whl|tar\.gz|zip|egg)$"
)
#: Standard-library modules that another project is the origin of, or a copy of.
TWINS = {
    "tomli": "tomllib", "importlib-metadata": "importlib.metadata", "importlib-resources": "importlib.resources",
    "typing-extensions": "typing", "backports-zoneinfo": "zoneinfo", "simplejson": "json", "distlib": "distutils",
}  # fmt: skip

TEST_PATH = re.compile(
    r"(?:^|/)tests?/|(?:^|/)test_[^/]*$|(?:^|/)tests?\.py$|_test\.(?:py|go)$|\.(?:test|spec)\.[jt]sx?$"
)
CONFTEST = re.compile(r"(?:^|/)conftest\.py$")
#: Files that say how tests run, and those of their keys that decide which and how.
CONFIG_FILES = re.compile(
    r"(?:^|/)(?:\.?pytest\.(?:ini|toml)|tox\.ini|setup\.cfg|pyproject\.toml|noxfile\.py|\.coveragerc|Makefile|justfile)$"
)
CONFIG_KEYS = frozenset(
    {"addopts", "testpaths", "python_files", "python_classes", "python_functions", "norecursedirs", "usefixtures",
     "required_plugins", "xfail_strict", "filterwarnings", "collect_imported_tests", "commands", "test", "pythonpath"}
)  # fmt: skip
#: Words in tests whose lines are what is expected, and those that switch a test off.
EXPECTS = re.compile(r"\bassert|\bself\.fail|\.raises\(|\bpytest\.approx|\bexpect\(|^\s*(?:async\s+)?def test|>>> ")
SWITCHES_OFF = re.compile(
    r"\b(?:skip|skipif|skipIf|skipUnless|skipTest|xfail|expectedFailure|importorskip)\b|__test__\s*=\s*False|collect_ignore"
)

# --- Programs ------------------------------------------------------------------------------------

READERS = words_of(
    """cat tac nl less more most bat batcat head tail strings xxd od hexdump hd base64 base32 cut sort uniq tr paste
    column fold rev diff sdiff cmp comm colordiff jq yq sqlite3 vim vi view nano emacs ed ex unzip zipgrep zcat bzcat
    xzcat zstdcat gunzip gzip bunzip2 unxz zstd tar bsdtar cpio 7z pax dd readelf objdump nm gdb openssl pygmentize
    code source zless zgrep delta"""
)
#: The first word is a pattern or a program unless -e or -f gives it.
SEARCHERS = words_of("grep egrep fgrep rg ag ack sed gsed awk gawk mawk perl-grep")
LISTERS = words_of(
    "ls dir vdir tree stat file du wc md5sum sha1sum sha256sum sha512sum realpath readlink basename "
                    "exa eza lsd fd fdfind locate plocate mlocate namei test [ [["
)  # fmt: skip
REMOVERS = words_of("rm rmdir unlink shred trash trash-put")
COPIERS = words_of("cp mv install rsync ln scp")
WRITERS = words_of("tee touch truncate sponge")
#: Programs that run the words behind their own options; the value: how many words of theirs come first.
WRAPPERS = {
    "env": 0, "sudo": 0, "doas": 0, "timeout": 1, "gtimeout": 1, "nohup": 0, "nice": 0, "ionice": 0, "time": 0,
    "stdbuf": 0, "setsid": 0, "command": 0, "builtin": 0, "exec": 0, "unbuffer": 0, "busybox": 0, "chrt": 1,
    "taskset": 1, "strace": 0, "ltrace": 0, "watch": 0, "faketime": 1, "proxychains": 0, "caffeinate": 0, "then": 0,
    "do": 0, "!": 0,
}  # fmt: skip
#: Options of wrappers and of xargs that take the next word.
WRAPPER_OPTIONS = words_of("-u -g -S -C -n -c -i -o -e -s -k -I -P -L -d -E -a --signal --chdir --unset")
#: ``uv run``, ``poetry run``, ...: a program that runs what is behind its sub-command.
RUNNERS = words_of("uv poetry pdm hatch pipenv rye pixi conda mamba tox nox coverage")
SHELLS = words_of("bash sh dash zsh ksh ash rbash")
PYTHON = re.compile(r"^(?:i?python|pypy|bpython)[\d.]*$")
OTHER_LANGUAGES = words_of("perl ruby node nodejs deno bun php lua tclsh Rscript julia")
DECOMPILERS = words_of(
    """uncompyle6 decompyle3 decompyle++ pycdc pycdas depyf unpyc unpyc3 unpyc37 pylingual pydisasm pydecompile pyc2py
    easy-python-decompiler decompile3 pydumpck javap cfr fernflower procyon"""
)
DECOMPILER_MODULES = words_of("uncompyle6 decompyle3 depyf unpyc3 unpyc xdis pylingual decompyle")
#: Programs whose input decoded is other text: their name says how.
DECODERS = words_of("base64 base32 xxd openssl uudecode gunzip zcat rev tr")

# --- git -------------------------------------------------------------------------------------------

GIT_PLUMBING = words_of(
    """fsck cat-file unpack-objects unpack-file verify-pack show-index reflog fast-export bundle notes rev-list
    prune-packed diff-tree ls-tree whatchanged lost-found archive format-patch cherry-pick range-diff replace"""
)
GIT_LISTS = words_of("log shortlog")
GIT_CONTENT_OPTIONS = ("-p", "-u", "--patch", "-S", "-G", "-L", "-U", "--unified", "--all", "-g", "--walk-reflogs",
                       "--reflog", "--full-diff", "--patch-with-stat", "-c", "--cc", "-m", "--branches",
                       "--remotes")  # fmt: skip
GIT_REVISION_READERS = words_of(
    "show diff checkout switch restore reset worktree blame annotate grep difftool "
                                 "merge rebase revert log shortlog read-tree merge-file show-branch"
)  # fmt: skip
GIT_NETWORK = words_of("fetch pull clone ls-remote")
GIT_PROGRAM_KEYS = re.compile(
    r"^(?:core\.(?:fsmonitor|hookspath|sshcommand|pager|editor)|filter\.|diff\..*\.(?:textconv|command))", re.I
)

# --- Hosts and packages ------------------------------------------------------------------------------

LOCAL_HOST = re.compile(
    r"^(?:localhost|127\.\d+\.\d+\.\d+|0\.0\.0\.0|\[?::1?\]?|.*\.(?:local|localhost|test|invalid|example))$", re.I
)
CODE_HOSTS = re.compile(
    r"(?:^|\.)(?:pypi\.org|pythonhosted\.org|pypi\.python\.org|github\.com|githubusercontent\.com|githubassets\.com|gitlab\.com"
    r"|gitlab\.[\w.-]+|bitbucket\.org|codeberg\.org|sr\.ht|sourceforge\.net|npmjs\.(?:org|com)|unpkg\.com|jsdelivr\.net|crates\.io"
    r"|docs\.rs|proxy\.golang\.org|pkg\.go\.dev|sum\.golang\.org|maven\.org|repo1\.maven\.org|mvnrepository\.com|anaconda\.org"
    r"|conda\.io|debian\.org|ubuntu\.com|softwareheritage\.org|web\.archive\.org|huggingface\.co|hf\.co|libraries\.io"
    r"|codesearch\.[\w.]+|grep\.app|sourcegraph\.com|gist\.github\.com|launchpad\.net|rubygems\.org|aliyun\.com|tuna\.tsinghua\.edu\.cn)$",
    re.I,
)  # fmt: skip
FETCHERS = words_of(
    "curl wget aria2c http https lynx w3m links elinks fetch axel nc ncat netcat telnet socat ftp sftp "
                     "ssh gh glab svn hg ping dig nslookup host"
)  # fmt: skip
#: Manager -> sub-commands that fetch the packages behind them.
PACKAGE_MANAGERS: dict[str, frozenset[str]] = {
    name: words_of(words)
    for name, words in {
        "pip": "install download wheel index search", "uv": "add install download", "pipx": "install run",
        "conda": "install search create", "mamba": "install search create", "poetry": "add", "pdm": "add",
        "pipenv": "install", "easy_install": "", "npm": "install i add pack view info show ci",
        "yarn": "add info pack", "pnpm": "add install view", "npx": "", "cargo": "install add search download",
        "go": "get install", "gem": "install fetch", "apt": "install download source",
        "apt-get": "install download source",
        "dnf": "install download", "yum": "install", "apk": "add fetch", "brew": "install",
    }.items()
}  # fmt: skip

# --- Python ------------------------------------------------------------------------------------------

#: Calls that read, list, write or remove the path of an argument (its index).
PYTHON_READS = {
    **dict.fromkeys(words_of("""io.open codecs.open tokenize.open os.open zipfile.ZipFile tarfile.open gzip.open
        bz2.open lzma.open sqlite3.connect linecache.getlines linecache.getline shutil.copy shutil.copyfile
        shutil.copy2 shutil.copytree shutil.unpack_archive numpy.fromfile mmap.mmap fileinput.input runpy.run_path
        zipimport.zipimporter importlib.machinery.SourcelessFileLoader py_compile.compile"""), 0),
    "open": 0, "imp.load_compiled": 1, "imp.load_source": 1, "importlib.machinery.SourcelessFileLoader": 1,
    "importlib.machinery.SourceFileLoader": 1, "importlib.util.spec_from_file_location": 1,
    "importlib.machinery.ExtensionFileLoader": 1,
}  # fmt: skip
PYTHON_LISTS = words_of("os.listdir os.scandir os.walk glob.glob glob.iglob os.stat os.path.getsize os.path.exists")
PYTHON_REMOVES = words_of("os.remove os.unlink os.rmdir shutil.rmtree os.removedirs")
PYTHON_WRITES = words_of("os.rename os.replace shutil.move shutil.copy shutil.copyfile shutil.copy2 os.symlink os.link")
PATH_READS = words_of("read_text read_bytes open")
PATH_LISTS = words_of("iterdir glob rglob exists is_file stat")
PATH_WRITES = words_of("write_text write_bytes")
PYTHON_SHELLS = words_of(
    """os.system os.popen subprocess.getoutput subprocess.getstatusoutput commands.getoutput pty.spawn
    asyncio.create_subprocess_shell"""
)
PYTHON_SPAWNS = words_of(
    """subprocess.run subprocess.call subprocess.check_call subprocess.check_output subprocess.Popen os.execv os.execvp
    os.spawnv os.spawnvp os.posix_spawn asyncio.create_subprocess_exec os.execlp os.execl sh.git"""
)
PYTHON_FETCHES = words_of(
    """urllib.request.urlopen urllib.request.urlretrieve urllib.request.Request urllib.urlopen requests.get
    requests.post requests.head requests.request requests.Session.get httpx.get httpx.post httpx.stream httpx.request
    urllib3.request http.client.HTTPSConnection http.client.HTTPConnection socket.create_connection socket.gethostbyname
    socket.getaddrinfo xmlrpc.client.ServerProxy ftplib.FTP wget.download git.Repo.clone_from aiohttp.request"""
)
#: Methods of connections, sessions and pools: the argument counts if it is an address.
FETCH_METHODS = words_of("get post head request connect urlopen urlretrieve retrieve clone_from")
MARSHAL = words_of("marshal.load marshal.loads _marshal.loads pickle.Unpickler_dispatch")
SOURCE_OF = words_of(
    "inspect.getsource inspect.getsourcelines inspect.getsourcefile inspect.findsource pydoc.render_doc"
)
DYNAMIC_CODE = words_of("eval exec compile builtins.eval builtins.exec builtins.compile runpy.run_module")
PYTHON_DECODERS = words_of(
    """base64.b64decode base64.b32decode base64.b16decode base64.b85decode base64.a85decode base64.decodebytes
    base64.urlsafe_b64decode base64.standard_b64decode binascii.unhexlify binascii.a2b_base64 bytes.fromhex
    codecs.decode     zlib.decompress gzip.decompress bz2.decompress lzma.decompress marshal.loads"""
)
ENDS_PROCESS = words_of("os._exit os.abort posix._exit pytest.exit _pytest.outcomes.exit os.kill")
TEST_FRAMEWORKS = words_of("pytest _pytest pluggy unittest nose")
