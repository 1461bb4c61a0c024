"""Targets that are one file: archives, whose members count as the files of the target, and images with their layers."""

from __future__ import annotations

import json
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import cast

from taskgen.errors import FormatError, PrerequisiteError
from taskgen.leaks.blob import Blob, Limits, Unreadable, parsing
from taskgen.leaks.decoders import archive_tar, archive_zip, compressed
from taskgen.leaks.decoding import decoder_for
from taskgen.leaks.records import Problem
from taskgen.leaks.scanner import disk_blob

_CONTAINERS = (archive_tar.NAME, archive_zip.NAME)
_WHITEOUT = ".wh."


def members(path: Path, limits: Limits) -> Iterator[Blob | Problem]:
    """The files in an archive (compressed or not); of a file that is none, itself."""
    yield from _members(disk_blob(path.parent, path.name, limits), limits)


def _members(blob: Blob, limits: Limits) -> Iterator[Blob | Problem]:
    decoder = decoder_for(blob)
    if decoder is None or decoder.NAME not in (*_CONTAINERS, compressed.NAME):
        yield blob.as_root(limits)
        return
    try:
        for found in decoder.decode(blob):
            if not isinstance(found, Blob):
                yield cast(Problem, found)
            elif decoder.NAME in _CONTAINERS:
                yield found.as_root(limits)
            else:
                yield from _members(found, limits)
    except Unreadable as error:
        yield Problem(reason=f"{decoder.NAME}: {error}")


# --- Images ----------------------------------------------------------------------------------------


def save_image(name: str, to: Path) -> None:
    """Write an image of the Docker engine to a file, as ``docker save`` does. Raises PrerequisiteError."""
    import docker
    from docker.errors import DockerException

    try:
        image = docker.from_env().images.get(name)
        with to.open("wb") as file:
            for chunk in image.save(named=True):
                file.write(chunk)
    except DockerException as error:
        raise PrerequisiteError(
            f"image {name!r} cannot be read: {error}", hint="start the engine, set DOCKER_HOST, or give a saved tar"
        ) from error


def image_files(path: Path, limits: Limits) -> Iterator[Blob | Problem]:
    """Every file of every layer of a saved image, named ``layer N/path``; those that later layers delete or replace
    too, since anybody who can pull the image can read them. And its configuration.

    Raises:
        FormatError: it is no saved image.
    """
    with tarfile.open(path, mode="r:") as tar:
        manifest = _json(tar, "manifest.json")
        if not isinstance(manifest, list) or not manifest:
            raise FormatError(f"{path} is not an image: it has no manifest.json", hint="docker save -o FILE NAME")
        for image in manifest:
            config = str(image.get("Config", ""))
            yield from _file(tar, config, limits)
            for number, layer in enumerate(image.get("Layers") or [], 1):
                yield from _layer(tar, str(layer), f"layer {number}", limits)


def _json(tar: tarfile.TarFile, name: str) -> object:
    try:
        stream = tar.extractfile(name)
        return json.loads(stream.read()) if stream is not None else None
    except (KeyError, ValueError, tarfile.TarError):
        return None


def _file(tar: tarfile.TarFile, name: str, limits: Limits) -> Iterator[Blob | Problem]:
    try:
        info = tar.getmember(name)
        stream = tar.extractfile(info)
    except KeyError:
        yield Problem(reason=f"{name}: the manifest names it, and it is not there")
        return
    if stream is not None:
        yield Blob.of_stream(f"image configuration/{name}", stream, info.size, limits)


def _layer(tar: tarfile.TarFile, name: str, label: str, limits: Limits) -> Iterator[Blob | Problem]:
    try:
        stream = tar.extractfile(name)
    except KeyError:
        stream = None
    if stream is None:
        yield Problem(reason=f"{label}: {name} is not there")
        return
    try:
        with parsing(label, tarfile.TarError), tarfile.open(fileobj=stream, mode="r|*") as layer:
            for info in layer:
                content = layer.extractfile(info) if info.isreg() else None
                if content is not None and not Path(info.name).name.startswith(_WHITEOUT):
                    yield Blob.of_stream(f"{label}/{info.name}", content, info.size, limits)
    except Unreadable as error:
        yield Problem(reason=f"{label}: {error}")


def engine_image(name: str, limits: Limits) -> Iterator[Blob | Problem]:
    """``image_files`` of an image that the engine has."""
    with tempfile.TemporaryDirectory(prefix="taskgen-audit-") as folder:
        saved = Path(folder, "image.tar")
        save_image(name, saved)
        yield from image_files(saved, limits)
