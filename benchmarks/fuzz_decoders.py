"""Turn bits of real files and decode them: ``python -m benchmarks.fuzz_decoders SECONDS FILE...``.

Each file is damaged at random again and again, for SECONDS each. Whatever is raised but a reason, or takes longer than
its limit, is printed with the seed that makes it; exit code 1 if there is any.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
import traceback
from pathlib import Path

from taskgen.leaks.blob import Blob, Limits
from taskgen.leaks.decoding import DECODER_FAULT, decoder_for, unfold
from taskgen.leaks.records import Problem

_LIMITS = Limits(seconds=10.0, unpacked_bytes=64 << 20, free_bytes=16 << 20)
_MAX_BYTES = 1 << 20


def damaged(data: bytes, rng: random.Random) -> bytes:
    """The bytes with some turned, cut, doubled or replaced."""
    broken = bytearray(data)
    for _ in range(rng.randrange(1, 10)):
        at = rng.randrange(len(broken) or 1)
        kind = rng.randrange(4)
        if kind == 0:
            broken[at : at + 1] = bytes([rng.randrange(256)])
        elif kind == 1:
            del broken[at : at + rng.randrange(1, 64)]
        elif kind == 2:
            broken[at:at] = broken[at : at + rng.randrange(1, 64)]
        else:
            broken[at : at + 4] = rng.choice(
                (b"\xff\xff\xff\xff", b"\0\0\0\0", b"\x7f\xff\xff\xff", b"\xff\xff\xff\x7f")
            )
    return bytes(broken)


def fuzz(path: Path, seconds: float) -> int:
    """Damage one file for some time; returns the number of faults."""
    data = path.read_bytes()[:_MAX_BYTES]
    decoder = decoder_for(Blob.of_bytes(path.name, data))
    end, seed, faults = time.monotonic() + seconds, 0, 0
    while time.monotonic() < end:
        seed += 1
        broken = damaged(data, random.Random(f"{path.name} {seed}"))
        began = time.monotonic()
        try:
            for item in unfold(Blob.of_bytes(path.name, broken, _LIMITS), lambda _data: True):
                if isinstance(item.content, Problem) and DECODER_FAULT in item.content.reason:
                    raise RuntimeError(item.content.reason)
        except Exception:
            faults += 1
            print(f"{path}, seed {seed}:\n{traceback.format_exc()}")
        if time.monotonic() - began > 2 * _LIMITS.seconds:
            faults += 1
            print(f"{path}, seed {seed}: {time.monotonic() - began:.1f} s")
    print(f"{path.name[:40]:40} {decoder.NAME if decoder else 'text':20} {seed:8,} times, {faults} faults", flush=True)
    return faults


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seconds", type=float)
    parser.add_argument("files", type=Path, nargs="+")
    args = parser.parse_args()
    sys.exit(1 if sum(fuzz(path, args.seconds) for path in args.files) else 0)


if __name__ == "__main__":
    main()
