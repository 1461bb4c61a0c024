"""TensorBoard's event files, by the package tensorboard, which needs no torch.

tensorboardX would be lighter to install, but imports all of torch wherever that is installed.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

_VERSION = "brain.Event:2"


class EventFile:
    """One event file of scalars. Each record is on the disk when ``add`` returns, so that TensorBoard shows it.

    Raises OSError of the disk from each method.
    """

    def __init__(self, path: Path, protos: Any, records: Any) -> None:  # noqa: ANN401 - tensorboard has no types
        self.path, self._protos, self._records = path, protos, records

    @classmethod
    def open(cls, folder: Path, *, purge_step: int | None = None) -> Self | None:
        """A new file in ``folder``, behind those that are there. None: the package tensorboard is not installed.

        Args:
            purge_step: TensorBoard drops what earlier files say of this step and of later ones.
        """
        try:
            from tensorboard.compat.proto import event_pb2
            from tensorboard.summary.writer.record_writer import RecordWriter
        except ImportError:
            return None
        folder.mkdir(parents=True, exist_ok=True)
        # TensorBoard reads a folder's files in the order of their names; clocks may go back, numbers do not.
        numbers = [int(name) for name in (p.suffix[1:] for p in folder.glob("events.out.tfevents.*")) if name.isdigit()]
        path = folder / f"events.out.tfevents.{max(numbers, default=0) + 1:010d}"
        file = cls(path, event_pb2, RecordWriter(path.open("xb")))
        file._write(event_pb2.Event(wall_time=time.time(), file_version=_VERSION))
        if purge_step is not None:
            start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
            file._write(event_pb2.Event(wall_time=time.time(), step=purge_step, session_log=start))
        return file

    def add(self, step: int, scalars: Mapping[str, float]) -> None:
        """Write the scalars of a step: tag -> value."""
        event = self._protos.Event(wall_time=time.time(), step=step)
        for tag, value in scalars.items():
            event.summary.value.add(tag=tag, simple_value=value)
        self._write(event)

    def close(self) -> None:
        """No more can be written."""
        self._records.close()

    def _write(self, event: Any) -> None:  # noqa: ANN401
        self._records.write(event.SerializeToString())
        self._records.flush()
