"""Host processes: nothing of their output is lost on a busy machine, and descriptors may have any number."""

from __future__ import annotations

import os
import resource
import subprocess
import threading
import time
from collections.abc import Iterator

import pytest

from taskgen import process


class Late(process.BoundedReader):
    """A reader whose thread does not get a processor before all is over."""

    def run(self) -> None:
        pass


def test_what_a_program_wrote_is_kept_though_the_readers_thread_came_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "BoundedReader", Late)
    done = process.run(["sh", "-c", "printf out; printf err >&2"])
    assert (done.stdout, done.stderr) == (b"out", b"err")


def test_a_daemon_that_holds_the_output_open_does_not_hold_up_its_reader() -> None:
    with subprocess.Popen(
        ["sh", "-c", "printf before; exec sleep 60"], stdout=subprocess.PIPE, start_new_session=True
    ) as started:
        assert started.stdout
        reader = process.BoundedReader(started.stdout, 100)
        while not reader.total_bytes:
            time.sleep(0.01)
        began = time.monotonic()
        reader.finish(0.5)
        assert time.monotonic() - began < 30.0
        assert reader.value() == b"before"
        process.kill_tree(started)


def test_all_of_a_long_output_arrives() -> None:
    done = process.run(["head", "-c", "3000000", "/dev/zero"])
    assert (done.stdout_bytes, len(done.stdout)) == (3_000_000, 3_000_000)


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 1400:
        pytest.skip("this machine allows too few descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 1400), hard))
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    yield
    for handle in held:
        os.close(handle)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_descriptors_above_1023_can_be_waited_for(many_descriptors: None) -> None:
    read, write = os.pipe()
    try:
        assert read > 1023
        assert not process.is_ready(read, 0.01)
        timer = threading.Timer(0.05, os.write, (write, b"x"))
        timer.start()
        assert process.is_ready(read, 30.0)
        timer.join()
        assert process.run(["printf", "far"]).stdout == b"far"
    finally:
        os.close(read)
        os.close(write)


def test_a_sandbox_runs_with_descriptors_above_1023(
    bubblewrap: None, many_descriptors: None, tmp_path_factory: pytest.TempPathFactory
) -> None:
    from taskgen.sandboxes.bubblewrap import BubblewrapProvider

    with BubblewrapProvider(tmp_path_factory.mktemp("far")).create() as sandbox:
        assert sandbox.exec(["echo", "far"], cwd="/").stdout == b"far\n"
