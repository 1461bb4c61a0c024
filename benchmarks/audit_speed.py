"""Speed and memory of the audit, beside ripgrep on the same tree: ``python -m benchmarks.audit_speed TREE --against
PATCH``. TREE should be large: an environment of tens of thousands of files.

Printed: plain text and decoding in MB/s of one core; the tree cold and warm with two processes; ripgrep with the same
needles (plain text alone: it decodes nothing but gzip, and that only on demand); the largest memory, also for a bomb.
"""

from __future__ import annotations

import argparse
import gzip
import io
import multiprocessing
import resource
import shutil
import subprocess
import tempfile
import time
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

from taskgen.leaks.blob import Blob
from taskgen.leaks.matching import Matcher
from taskgen.leaks.query import Query, make_query
from taskgen.leaks.scanner import Scanner, scan_files
from taskgen.leaks.subject import make_subject
from taskgen.leaks.targets import walk


def timed(work: Callable[[], object]) -> float:
    """Seconds of the fastest of three runs."""
    best = float("inf")
    for _ in range(3):
        began = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - began)
    return best


def text_of(root: Path, limit: int) -> bytes:
    """Python sources of the tree, one behind the other."""
    parts, total = [], 0
    for path in walk(root).files:
        if path.endswith(".py"):
            parts.append((root / path).read_bytes())
            total += len(parts[-1])
            if total >= limit:
                break
    return b"".join(parts)


def bomb() -> bytes:
    """2 GiB of zeros in a zip."""
    buffer = io.BytesIO()
    with (
        zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("zeros", "w", force_zip64=True) as member,
    ):
        for _ in range(2048):
            member.write(bytes(1 << 20))
    return buffer.getvalue()


def memory_mb(work: Callable[[], object]) -> float:
    """The largest memory of a new process that does some work, in MB."""
    queue = multiprocessing.get_context("fork").Queue()

    def run() -> None:
        work()
        queue.put(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)

    process = multiprocessing.get_context("fork").Process(target=run)
    process.start()
    found = float(queue.get())
    process.join()
    return found


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tree", type=Path)
    parser.add_argument("--against", type=Path, required=True)
    args = parser.parse_args()
    subject = make_subject("x", args.against.read_text(), lambda _path: None, ())
    query: Query = make_query([subject], thorough=False, sparing=True)
    matcher = Matcher(query.fingerprints, sparing=True)

    text = text_of(args.tree, 64 << 20)
    seconds = timed(lambda: matcher.hits(text))
    print(f"plain text: {len(text) / seconds / 1e6:.0f} MB/s of one core (aim 200)")
    for name, packed in (("gzip", gzip.compress(text, 6)), ("zlib", zlib.compress(text, 6))):
        seconds = timed(lambda packed=packed: Scanner(query).scan([Blob.of_bytes("a", packed)]))  # type: ignore[misc]
        print(f"through {name}: {len(text) / seconds / 1e6:.0f} MB/s of one core, of unpacked text (aim 60)")

    paths = walk(args.tree).files
    size = sum((args.tree / path).stat().st_size for path in paths)
    print(f"the tree: {len(paths):,} files, {size / 1e6:,.0f} MB")
    with tempfile.TemporaryDirectory() as folder:
        cache = Path(folder)
        for label in ("cold", "warm"):
            began = time.perf_counter()
            found = scan_files(args.tree, paths, query, jobs=2, cache=cache)
            spent = time.perf_counter() - began
            print(f"{label}, two processes: {spent:.1f} s, {size / spent / 1e6:.0f} MB/s, {len(found.hits)} hits")
    if rg := shutil.which("rg"):
        needles = cache.parent / "needles.txt"
        needles.write_bytes(b"\n".join(line for f in query.fingerprints for line in f.lines))
        argv = [rg, "--no-ignore", "--hidden", "--text", "-j", "2", "-c", "-F", "-f", str(needles), str(args.tree)]
        seconds = timed(lambda: subprocess.run(argv, capture_output=True))
        print(f"ripgrep, the same lines, plain bytes alone: {seconds:.1f} s")
        needles.unlink()
    else:
        print("ripgrep is not installed (apt-get install ripgrep)")
    data = bomb()
    most = memory_mb(lambda: Scanner(query).scan([Blob.of_bytes("b", data)]))
    print(f"a bomb of 2 GiB in {len(data):,} bytes: {most:.0f} MB at most")
    most = memory_mb(lambda: scan_files(args.tree, paths, query, jobs=1))
    print(f"the tree in one process: {most:.0f} MB at most (aim 500)")


if __name__ == "__main__":
    main()
