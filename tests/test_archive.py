from __future__ import annotations

import io
import os
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from taskgen.archive import (
    MTIME_S,
    ArchiveEntry,
    compress,
    decompress,
    entries_of,
    pack,
    pack_zst,
    read_entries,
    unpack,
)
from taskgen.errors import FormatError

LONG = "/".join(["d" * 120] * 3) + "/" + "f" * 200

names = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="/\0"), min_size=1, max_size=12).filter(
    lambda name: name not in (".", "..") and name.lower() not in (".git", "git~1")
)
entries = st.builds(ArchiveEntry, path=names, content=st.binary(max_size=2000), executable=st.booleans()) | st.builds(
    ArchiveEntry, path=names, link_target=names
)
archives = st.lists(entries, unique_by=lambda e: e.path, max_size=8)


def by_path(found: list[ArchiveEntry]) -> list[ArchiveEntry]:
    return sorted(found, key=lambda e: e.path)


@given(archives, st.randoms())
@settings(max_examples=60, deadline=None)
def test_round_trip_and_determinism(files: list[ArchiveEntry], random: object) -> None:
    shuffled = list(files)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    data = pack_zst(files)
    assert data == pack_zst(shuffled)
    assert by_path(read_entries(data)) == by_path(files)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "out"
        unpack(data, root)
        assert entries_of(root) == by_path(files)
        assert pack_zst(root) == data


@given(st.binary(max_size=3000))
@settings(max_examples=150, deadline=None)
def test_noise_is_a_format_error_or_nothing(noise: bytes) -> None:
    for data in (noise, compress(noise), b"\x28\xb5\x2f\xfd" + noise):
        try:
            read_entries(data)
        except FormatError:
            continue


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_damaged_archives(data: st.DataObject) -> None:
    good = bytearray(pack([ArchiveEntry(path="a/b", content=b"x" * 700), ArchiveEntry(path="l", link_target="a")]))
    for _ in range(data.draw(st.integers(1, 4))):
        good[data.draw(st.integers(0, 2600))] = data.draw(st.integers(0, 255))
    try:
        read_entries(bytes(good))
    except FormatError:
        return


def test_nothing_of_this_machine_is_in_the_archive(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1")
    (tmp_path / "a").chmod(0o700)
    os.utime(tmp_path / "a", (5, 5))
    (tmp_path / LONG).parent.mkdir(parents=True)
    (tmp_path / LONG).write_bytes(b"2")
    (tmp_path / "sp ace\n\u00e9").write_bytes(b"3")
    (tmp_path / "link").symlink_to("./a")
    with tarfile.open(fileobj=io.BytesIO(pack(tmp_path))) as tar:
        members = tar.getmembers()
    assert [m.name for m in members] == sorted(m.name for m in members)
    assert {(m.mtime, m.uid, m.gid, m.uname, m.gname) for m in members} == {(MTIME_S, 0, 0, "", "")}
    modes = {m.name: (m.mode, m.linkname) for m in members}
    assert modes["a"] == (0o755, "")
    assert modes[LONG] == (0o644, "")
    assert modes["link"] == (0o777, "./a")


def raw_tar(*members: tuple[str, Callable[[tarfile.TarInfo], None] | None]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, change in members:
            info = tarfile.TarInfo(name)
            info.size = 1
            if change is not None:
                info.size = 0
                change(info)
            tar.addfile(info, io.BytesIO(b"x"))
    return buffer.getvalue()


def kind(value: bytes, target: str = "") -> Callable[[tarfile.TarInfo], None]:
    def change(info: tarfile.TarInfo) -> None:
        info.type, info.linkname = value, target

    return change


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (raw_tar(("/etc/x", None)), "absolute"),
        (raw_tar(("../x", None)), "'..'"),
        (raw_tar(("a/../../x", None)), "'..'"),
        (raw_tar(("a//b", None)), "component ''"),
        (raw_tar((".git/hooks/pre-commit", None)), r"\.git"),
        (raw_tar(("sub/.GIT/config", None)), r"\.git"),
        (raw_tar(("../d", kind(tarfile.DIRTYPE))), "'..'"),
        (raw_tar(("l", kind(tarfile.SYMTYPE, "/etc/passwd"))), "absolute"),
        (raw_tar(("l", kind(tarfile.SYMTYPE, "../x"))), "out of the tree"),
        (raw_tar(("d", kind(tarfile.SYMTYPE, ".")), ("l", kind(tarfile.SYMTYPE, "d/../../x"))), "after a name"),
        (raw_tar(("a", None), ("h", kind(tarfile.LNKTYPE, "a"))), "not a plain file"),
        (raw_tar(("f", kind(tarfile.FIFOTYPE))), "not a plain file"),
        (raw_tar(("c", kind(tarfile.CHRTYPE))), "not a plain file"),
        (raw_tar(("a", None), ("a", None)), "twice"),
        (raw_tar(("a", None))[:700], "broken|cut short"),
        (compress(raw_tar(("a", None)))[:-3], "cut short"),
        (compress(raw_tar(("a", None))) + b"more", "behind"),
        (b"\x28\xb5\x2f\xfdnonsense", "broken|cut short"),
    ],
    ids=lambda value: "" if isinstance(value, bytes) else value,
)
def test_hostile_archives(tmp_path: Path, data: bytes, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        unpack(data, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_file_below_a_link_is_refused(tmp_path: Path) -> None:
    data = raw_tar(("d", kind(tarfile.SYMTYPE, "e")), ("d/x", None))
    with pytest.raises(FormatError, match="twice"):
        unpack(data, tmp_path)
    assert not (tmp_path / "e").exists()


def test_links_that_are_there_are_not_followed(tmp_path: Path) -> None:
    outside, root = tmp_path / "outside", tmp_path / "root"
    outside.mkdir()
    root.mkdir()
    (outside / "x").write_text("mine")
    (root / "d").symlink_to(outside)
    (root / "f").symlink_to(outside / "x")
    with pytest.raises(FormatError, match="not a folder"):
        unpack(raw_tar(("d/x", None)), root, overwrite=True)
    with pytest.raises(FormatError, match="twice"):
        unpack(raw_tar(("f", None)), root)
    assert unpack(raw_tar(("f", None)), root, overwrite=True) == ["f"]
    assert not (root / "f").is_symlink()
    assert (outside / "x").read_text() == "mine"


def test_bombs_are_bounded() -> None:
    bomb = zstandard.ZstdCompressor(level=3).compress(bytes(64 << 20))
    with pytest.raises(FormatError, match="more than 1000000 bytes"):
        decompress(bomb, max_bytes=1_000_000)
    with pytest.raises(FormatError, match="unpacks to more than"):
        read_entries(pack([ArchiveEntry(path="a", content=bytes(2000))]), max_bytes=1000)


@pytest.mark.parametrize(
    "entry",
    [
        ArchiveEntry(path="../a"),
        ArchiveEntry(path="/a"),
        ArchiveEntry(path="a", link_target="/etc"),
        ArchiveEntry(path="a/.git/b"),
    ],
)
def test_pack_refuses_what_unpack_would(entry: ArchiveEntry) -> None:
    with pytest.raises(FormatError, match="cannot pack"):
        pack([entry])


def test_pack_refuses_duplicates_and_special_files(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="twice"):
        pack([ArchiveEntry(path="a"), ArchiveEntry(path="a")])
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FormatError, match="neither a file nor a link"):
        pack(tmp_path)


def test_compress_names_its_size_and_is_fixed() -> None:
    data = b"taskgen " * 100_000
    frame = compress(data)
    assert frame == compress(data)
    assert zstandard.frame_content_size(frame) == len(data)
    assert decompress(frame) == data
