"""A fork server for test runs, inside the sandbox.

It starts in a filled workspace (see ``session.START``), reads one JSON request a line on stdin, and answers on stdout
with the events of the run, a JSON object a line, closed by ``{"e": "done", ...}``. For each request it brings
/workspace back to the pristine tree, lays the request's files over it, runs ``child`` in a forked process (pytest is
loaded once, the repository's code never), bounds it in time and output, and kills every process that is left.

The server shares its sandbox with the code under test. It protects the runs from each other's leftovers, not
from malice: a caller that distrusts the code uses a sandbox for one run only. What the server itself says of a run
(how it ended, its exit code, which protected files it changed) is out of the run's reach: the server's memory and
descriptors are closed to other processes of its user.
"""

from __future__ import annotations

import base64
import contextlib
import ctypes
import hashlib
import json
import os
import select
import selectors
import shutil
import signal
import stat
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from typing import Any

#: The tree as the caller put it, and what the editable install added to it (metadata, compiled extensions).
TREE, ARTIFACTS, WORKSPACE = "/home/agent/.taskgen-tree", "/env/artifacts", "/workspace"
BYTECODE = "/tmp/pycache"
HERE = os.path.dirname(os.path.abspath(__file__))
OUTPUT_KEEP_BYTES = 16 << 10
#: How often it is asked whether the run itself has ended, while a daemon of it keeps the pipes open.
CHECK_EVERY_S = 0.25
EVENTS_MAX_BYTES = 512 << 20

#: prctl: whether other processes of the same user may trace this one, or open its memory and descriptors.
PR_SET_DUMPABLE = 4

Stamp = tuple[int, int, int]


def set_dumpable(value: int) -> None:
    """Open (1) or close (0) this process to others of its user; a fork inherits it, an exec opens it again."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_DUMPABLE, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_DUMPABLE)")


def digest(path: str) -> str:
    """The SHA-256 of a file of the workspace; '' for what is not a plain file (any longer)."""
    place = os.path.join(WORKSPACE, path)
    try:
        if not stat.S_ISREG(os.lstat(place).st_mode):
            return ""
        with open(place, "rb") as stream:
            return hashlib.sha256(stream.read()).hexdigest()
    except OSError:
        return ""


def stamp(path: str) -> Stamp:
    found = os.lstat(path)
    return found.st_mode, found.st_size, found.st_mtime_ns


class Workspace:
    """Keeps /workspace equal to the pristine tree plus the files of the current request."""

    def __init__(self) -> None:
        self.origin = {path: os.path.join(root, path) for root in (ARTIFACTS, TREE) for path in walk(root)}
        self.pristine = {path: stamp(origin) for path, origin in self.origin.items()}

    def restore(self) -> None:
        """Undo whatever the last run wrote, deleted or changed."""
        for path in list(walk(WORKSPACE)):
            if path not in self.pristine:
                os.unlink(os.path.join(WORKSPACE, path))
        remove_empty_directories(WORKSPACE)
        for path, wanted in self.pristine.items():
            target = os.path.join(WORKSPACE, path)
            if not os.path.lexists(target) or stamp(target) != wanted:
                self._copy(path, target)

    def _copy(self, path: str, target: str) -> None:
        if os.path.islink(target) or os.path.isfile(target):
            os.unlink(target)
        elif os.path.isdir(target):
            shutil.rmtree(target)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        shutil.copy2(self.origin[path], target, follow_symlinks=False)

    @staticmethod
    def overlay(files: dict[str, str | None]) -> None:
        """Write (base64) or delete (null) files. Contents decide the times, so that bytecode stays valid."""
        for path, content in files.items():
            target = os.path.join(WORKSPACE, path)
            if content is None:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(target)
                with contextlib.suppress(OSError):
                    os.removedirs(os.path.dirname(target))
                continue
            data = base64.b64decode(content)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            mode = stat.S_IMODE(os.lstat(target).st_mode) if os.path.lexists(target) else 0o644
            with contextlib.suppress(FileNotFoundError):
                os.unlink(target)
            with open(target, "wb") as out:
                out.write(data)
            os.chmod(target, mode)
            when = 1_000_000_000 + zlib.crc32(data) % 100_000_000
            os.utime(target, (when, when))


def walk(root: str) -> Iterator[str]:
    for folder, folders, files in os.walk(root):
        linked = [name for name in folders if os.path.islink(os.path.join(folder, name))]
        for name in files + linked:
            yield os.path.relpath(os.path.join(folder, name), root)


def remove_empty_directories(root: str) -> None:
    for folder, _, _ in os.walk(root, topdown=False):
        if folder != root:
            with contextlib.suppress(OSError):
                os.rmdir(folder)


def ancestors() -> set[int]:
    pids, pid = set(), os.getpid()
    while pid > 0:
        pids.add(pid)
        try:
            with open("/proc/%d/stat" % pid, "rb") as status:
                pid = int(status.read().rsplit(b")", 1)[1].split()[1])
        except OSError:
            break
    return pids | {1}


def kill_everything_else() -> None:
    """Kill all processes of the sandbox but the server and its parents, daemons included."""
    keep = ancestors()
    for _ in range(3):
        others = [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) not in keep]
        for pid in others:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if not others:
            return
        time.sleep(0.002)


class Run:
    """One run of ``child``, watched: events are passed on, output is bounded, hangs are ended."""

    def __init__(self, request: dict[str, Any], out: Any, requests_fd: int, spawn: bool) -> None:
        self.request, self.out, self.requests_fd, self.spawn = request, out, requests_fd, spawn
        self.output = bytearray()
        self.output_bytes = 0
        self.events_bytes = 0
        self.partial = b""
        self.running: int | None = None
        self.finished = False
        self.last_event_s = time.monotonic()

    def execute(self) -> dict[str, Any]:
        began, cpu_before = time.monotonic(), children_cpu_s()
        protected = {path: digest(path) for path in self.request.get("protect", ())}
        pid, events, output = self._start()
        status = self._watch(pid, events, output, began)
        self._drain(output, self._keep_output)
        with contextlib.suppress(OSError):
            os.killpg(pid, signal.SIGKILL)
        code = wait_code(pid)
        for fd in (events, output):
            os.close(fd)
        kill_everything_else()
        if status == "ended" and not self.finished:
            status = "crashed"
        return {
            "e": "done",
            "status": status,
            "running": self.running,
            "code": code,
            "seconds": time.monotonic() - began,
            "cpu_s": children_cpu_s() - cpu_before,
            "output": self.output[-OUTPUT_KEEP_BYTES:].decode("utf-8", "replace"),
            "output_bytes": self.output_bytes,
            "changed": [path for path, before in protected.items() if digest(path) != before],
        }

    def _start(self) -> tuple[int, int, int]:
        events_r, events_w = os.pipe()
        output_r, output_w = os.pipe()
        if self.spawn:
            os.set_inheritable(events_w, True)
            process = subprocess.Popen(
                [sys.executable, os.path.join(HERE, "child.py"), str(events_w)],
                stdin=subprocess.PIPE, stdout=output_w, stderr=output_w,
                pass_fds=[events_w], start_new_session=True, cwd=WORKSPACE,
            )  # fmt: skip
            assert process.stdin
            process.stdin.write(json.dumps(self.request).encode())
            process.stdin.close()
            pid = process.pid
            process.returncode = 0  # reaped by wait_code, not by Popen
        else:
            pid = os.fork()
            if pid == 0:
                self._become_child(events_r, events_w, output_r, output_w)
        os.close(events_w)
        os.close(output_w)
        return pid, events_r, output_r

    def _become_child(self, events_r: int, events_w: int, output_r: int, output_w: int) -> None:
        code = 70
        try:
            os.setsid()
            os.close(events_r)
            os.close(output_r)
            for fd in (1, 2):
                os.dup2(output_w, fd)
            os.close(output_w)
            os.close(self.out.fileno())
            os.close(self.requests_fd)
            set_dumpable(1)
            import child

            code = child.run(self.request, events_w)
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            with contextlib.suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)

    def _watch(self, pid: int, events: int, output: int, began: float) -> str:
        run_ends = began + self.request["run_timeout_s"]
        selector = selectors.DefaultSelector()
        selector.register(events, selectors.EVENT_READ)
        selector.register(output, selectors.EVENT_READ)
        while True:
            now = time.monotonic()
            limit = self.last_event_s + self.request["test_timeout_s"]
            if now >= run_ends:
                return "run_timeout"
            if now >= limit:
                return "test_timeout"
            ready = selector.select(max(0.0, min(limit, run_ends, now + CHECK_EVERY_S) - now))
            if not any(key.fd == events for key, _ in ready) and has_ended(pid):
                self._drain(events, self._pass_on)
                return "ended"
            for key, _ in ready:
                chunk = os.read(key.fd, 1 << 16)
                if key.fd == output:
                    self._keep_output(chunk)
                    if not chunk:
                        selector.unregister(output)
                elif not chunk:
                    return "ended"
                elif not self._pass_on(chunk):
                    return "flooded"

    @staticmethod
    def _drain(fd: int, use: Callable[[bytes], object]) -> None:
        """Take what was written at last, but not all that a daemon may go on to write."""
        for _ in range(64):
            if not select.select([fd], [], [], 0)[0] or not (chunk := os.read(fd, 1 << 16)):
                return
            use(chunk)

    def _keep_output(self, chunk: bytes) -> None:
        self.output_bytes += len(chunk)
        self.output += chunk
        if len(self.output) > 4 * OUTPUT_KEEP_BYTES:
            del self.output[:-OUTPUT_KEEP_BYTES]

    def _pass_on(self, chunk: bytes) -> bool:
        self.last_event_s = time.monotonic()
        self.events_bytes += len(chunk)
        lines = (self.partial + chunk).split(b"\n")
        self.partial = lines.pop()
        for line in lines:
            if line.startswith(b'{"e": "start", "i": '):
                self.running = int(line[20:-1])
            elif line.startswith(b'{"e": "end"'):
                self.running = None
            elif line.startswith(b'{"e": "finish"'):
                self.finished = True
            self.out.write(line + b"\n")
        return self.events_bytes < EVENTS_MAX_BYTES


def children_cpu_s() -> float:
    used = os.times()
    return used.children_user + used.children_system


def has_ended(pid: int) -> bool:
    """Whether a child has ended; it is not reaped."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True


def wait_code(pid: int) -> int:
    try:
        status = os.waitpid(pid, 0)[1]
    except ChildProcessError:
        return -1
    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)


def preload() -> bool:
    """Load pytest and its installed plugins once. False if that loaded code of the workspace."""
    sys.path.insert(0, HERE)
    import child

    child.preload()
    paths = (getattr(module, "__file__", None) or "" for module in list(sys.modules.values()))
    return not any(path.startswith(WORKSPACE + "/") for path in paths)


def write_bytecode_elsewhere() -> None:
    """From here on bytecode is written and looked for in a folder of this sandbox, by subprocesses, too."""
    sys.dont_write_bytecode, sys.pycache_prefix = False, BYTECODE
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = BYTECODE


def serve() -> None:
    set_dumpable(0)
    requests = os.fdopen(os.dup(0), "rb")
    out = os.fdopen(os.dup(1), "wb")
    with open(os.devnull, "rb") as null:
        os.dup2(null.fileno(), 0)
    os.dup2(2, 1)
    os.chdir(WORKSPACE)
    workspace = Workspace()
    spawn = not preload()
    write_bytecode_elsewhere()
    out.write(json.dumps({"e": "ready", "spawn": spawn, "python": sys.version.split()[0]}).encode() + b"\n")
    out.flush()
    for line in requests:
        request = json.loads(line)
        workspace.restore()
        workspace.overlay(request["files"])
        done = Run(request, out, requests.fileno(), spawn).execute()
        out.write(json.dumps(done).encode() + b"\n")
        out.flush()


if __name__ == "__main__":
    serve()
