"""A run's records: written, read back, torn, cut; and what TensorBoard's own reader sees of them."""

from __future__ import annotations

import builtins
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from training_records import evaluation_record, step_record, write_metrics

from taskgen.errors import FormatError, StoreError
from taskgen.training.metrics import METRICS_FILE, MetricsWriter, cut_after, read_metrics, scalars

SEVERAL = [evaluation_record(0, 0.2), *(step_record(i) for i in range(1, 7)), evaluation_record(6, 0.4)]


def write(out_dir: Path, records: list[Any], resume_step: int | None = None) -> list[str]:
    notes: list[str] = []
    with MetricsWriter(out_dir, resume_step=resume_step, on_note=notes.append) as writer:
        for record in records:
            writer.write(record)
    return notes


def tensorboard_sees(out_dir: Path, tag: str) -> list[tuple[int, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(out_dir / "tensorboard"))
    found.Reload()
    return [(event.step, event.value) for event in found.Scalars(tag)]


def test_records_are_read_back_as_they_were_written(tmp_path: Path) -> None:
    assert write(tmp_path / "new", SEVERAL) == []
    assert list(read_metrics(tmp_path / "new" / METRICS_FILE)) == SEVERAL


def test_a_loss_that_is_not_finite_is_kept_and_one_that_is_not_there_is_null(tmp_path: Path) -> None:
    write(tmp_path, [step_record(1, loss=math.nan, gradient_norm=math.inf, kl=None)])
    (found,) = read_metrics(tmp_path / METRICS_FILE)
    assert math.isnan(found.loss) and found.gradient_norm == math.inf and found.kl is None  # type: ignore[union-attr]
    assert '"kl": null' in (tmp_path / METRICS_FILE).read_text()


def test_what_could_not_be_read_back_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="pass_rate"):
        write(tmp_path, [step_record(1), step_record(2, pass_rate=1.5)])
    assert [record.step for record in read_metrics(tmp_path / METRICS_FILE)] == [1]


def test_a_torn_last_line_is_dropped(tmp_path: Path) -> None:
    path = write_metrics(tmp_path, SEVERAL)
    for size in (1, 100):
        path.write_bytes(path.read_bytes()[:-size])
        assert list(read_metrics(path)) == SEVERAL[:-1]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"step": 1.5}, "step.step: Input should be a valid integer, not 1.5"),
        ({"reward": "high"}, "step.reward: .* not 'high'"),
        ({"hints": {"read-cache": 2}}, "step.hints.read-cache: .* not 2"),
        ({"kind": "epoch"}, "'epoch' found using 'kind'"),
        ({"colour": 1}, "step.colour: Unexpected keyword"),
    ],
)
def test_a_line_of_another_form_is_named_with_what_is_wrong(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    path = write_metrics(tmp_path, SEVERAL)
    lines = path.read_text().splitlines()
    lines[2] = json.dumps(json.loads(lines[2]) | change)
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(FormatError, match=rf"metrics.jsonl:3: no record of a training run: .*{said}"):
        list(read_metrics(path))


def test_lines_that_are_no_json_and_files_that_are_not_there(tmp_path: Path) -> None:
    path = tmp_path / METRICS_FILE
    with pytest.raises(FormatError, match="cannot be read: No such file"):
        list(read_metrics(path))
    for data in (b"{\n", b"\n", b"\xff\n", b"[1]\n"):
        path.write_bytes(data)
        with pytest.raises(FormatError, match=r"metrics.jsonl:1: no record"):
            list(read_metrics(path))


def test_cut_after_keeps_the_bytes_of_the_earlier_steps(tmp_path: Path) -> None:
    path = write_metrics(tmp_path, SEVERAL)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(path.read_bytes() + b'{"kind": "st')
    path.chmod(0o640)
    assert cut_after(path, 6) == 0
    assert path.read_bytes() == b"".join(lines)
    assert cut_after(path, 3) == 4
    assert path.read_bytes() == b"".join(lines[:4])
    assert path.stat().st_mode & 0o777 == 0o640
    assert cut_after(tmp_path / "none.jsonl", 3) == 0


def test_a_resumed_run_writes_behind_the_step_that_it_goes_on_from(tmp_path: Path) -> None:
    write(tmp_path, SEVERAL)
    write(tmp_path, [step_record(4, reward=0.75), step_record(5, reward=1.0)], resume_step=3)
    assert [record.step for record in read_metrics(tmp_path / METRICS_FILE)] == [0, 1, 2, 3, 4, 5]
    assert tensorboard_sees(tmp_path, "train/reward") == [(1, 0.25), (2, 0.25), (3, 0.25), (4, 0.75), (5, 1.0)]
    write(tmp_path, [step_record(1)], resume_step=-1)
    assert tensorboard_sees(tmp_path, "train/reward") == [(1, 0.25)]


def test_a_new_run_does_not_write_behind_another(tmp_path: Path) -> None:
    write(tmp_path, SEVERAL)
    with pytest.raises(StoreError, match=r"metrics.jsonl has the records of another run\n  hint: resume"):
        write(tmp_path, SEVERAL)
    assert list(read_metrics(tmp_path / METRICS_FILE)) == SEVERAL


def test_tensorboard_reads_each_number_under_its_tag(tmp_path: Path) -> None:
    record = step_record(1, kl=None)
    write(tmp_path, [evaluation_record(0, 0.25), record])
    assert tensorboard_sees(tmp_path, "evaluation/pass_at_1") == [(0, 0.25)]
    tags = scalars(record)
    assert {"train/reward", "hints/read-cache", "pools/hard", "seconds_of/learn"} <= set(tags)
    assert not {"train/kl", "train/kind", "train/step"} & set(tags)
    for tag, value in tags.items():
        assert tensorboard_sees(tmp_path, tag) == [(1, pytest.approx(value))]


def test_tensorboard_sees_a_record_while_the_run_goes_on(tmp_path: Path) -> None:
    with MetricsWriter(tmp_path, resume_step=None, on_note=print) as writer:
        writer.write(step_record(1))
        assert tensorboard_sees(tmp_path, "train/reward") == [(1, 0.25)]


def test_without_tensorboard_the_lines_are_written_and_it_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:  # noqa: ANN401
        if name.partition(".")[0] == "tensorboard":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    notes = write(tmp_path, SEVERAL)
    assert len(notes) == 1 and notes[0].startswith("tensorboard is not installed")
    assert list(read_metrics(tmp_path / METRICS_FILE)) == SEVERAL
    assert not (tmp_path / "tensorboard").exists()


def test_writing_event_files_imports_neither_torch_nor_tensorflow(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from taskgen.training.event_file import EventFile\n"
        "EventFile.open(Path(sys.argv[1])).add(1, {'a': 1.0}); print({'torch', 'tensorflow'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
