"""``taskgen train`` with ``stage: pretrain`` and ``stage: sft``: what is read, what is not, and going on with it."""

from __future__ import annotations

import difflib
import io
import json
import os
import random
import signal
import tarfile
import time
from pathlib import Path
from typing import Any

import pytest

from taskgen import archive, taskset
from taskgen.archive import ArchiveEntry
from taskgen.commands.train import train
from taskgen.commands.training_run import Options
from taskgen.errors import ConfigError, FormatError, TaskgenError
from taskgen.guards import Guards
from taskgen.training.documents import MAX_FILE_BYTES, collect
from taskgen.training.reading import split
from taskgen.training.reading_config import PretrainConfig, SftConfig, load_stage
from taskgen.training.rows import Corpus, Piece, Place, Reader, rows_once
from tests.repo_helpers import write
from tests.test_taskset import row
from tests.test_training_loop import kill_after, records, run, start
from tests.tiny_model import tokenizer_of

#: A task's code: what ``{short}`` and ``{long}`` stand for is deleted.
MODULE = """\
def scaled(values, factor):
{short}

def joined_ranges(ranges, gap):
{long}"""
SHORT = "    return [value * factor for value in values]\n"
LONG = """\
    found = []
    for start, end in sorted(ranges):
        if end < start:
            raise ValueError(f"{end} is before {start}")
        if found and start - found[-1][1] <= gap:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((start, end))
    total = sum(end - start for start, end in found)
    return found, total
"""
STUB = "    raise NotImplementedError\n"
RENAMED = MODULE.format(short=STUB, long=LONG)
for old, new in (("joined_ranges", "merge"), ("found", "out"), ("start", "lo"), ("end", "hi"), ("ranges", "spans")):
    RENAMED = RENAMED.replace(old, new)
TASK = "local-demo__function-0123456789"


def source(number: int) -> str:
    """Files that are alike, so that there is something to learn, and that no task has."""
    return "".join(f"def f{number}{name}(a):\n    return a\n\n\n" for name in "abcdefgh")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("corpus") / "src"
    write(root, {f"pkg/m{number}.py": source(number) for number in range(12)})
    return root


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A set of one task: two bodies are deleted."""
    out = tmp_path_factory.mktemp("tasks")
    solved, workspace = MODULE.format(short=SHORT, long=LONG), MODULE.format(short=STUB, long=STUB)
    lines = difflib.unified_diff(workspace.splitlines(True), solved.splitlines(True), "a/demo/m.py", "b/demo/m.py")
    files = [ArchiveEntry(path="demo/m.py", content=workspace.encode())]
    taskset.write_task(out, row(TASK, patch="".join(lines)), files, [], Guards())
    return out


def config(folder: Path, model: Path, **more: Any) -> Path:  # noqa: ANN401 - YAML
    document: dict[str, Any] = {
        "stage": "pretrain", "policy": {"model": str(model), "dtype": "float32"}, "steps": 4, "rows": 2, "length": 64,
        "optimizer": {"muon": {"lr": 0.01}, "adamw": {"lr": 0.01}}, "checkpoint": {"every": 1},
        "evaluate": {"share": 0.2, "every": 2},
    }  # fmt: skip
    path = folder / "run.yaml"
    path.write_text(json.dumps({key: value for key, value in (document | more).items() if value is not None}))
    return path


def trained(path: Path, out: Path, cache: Path) -> list[str]:
    """In this process; what is said on the way."""
    notes: list[str] = []
    provider: Any = None  # nothing is graded
    train(path, Options(out=out, provider=provider, cache=cache, jobs=1, quiet=True, on_note=notes.append))
    return notes


def left_out(out: Path) -> dict[str, tuple[str, str]]:
    lines = map(json.loads, (out / "left_out.jsonl").read_text().splitlines())
    return {line["name"]: (line["why"], line["detail"]) for line in lines}


# --- Pretraining -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, corpus: Path, tiny_model: Path, build_cache: Path) -> Path:
    """A run that nothing disturbed."""
    folder = tmp_path_factory.mktemp("whole")
    ended = run(config(folder, tiny_model, text=[str(corpus)], tasks=[]), folder / "out", build_cache)
    assert ended.code == 0, ended.stderr
    said = ended.json()
    assert said["step"] == 4 and not said["stopped"] and said["left_out"] == {}
    return folder / "out"


def test_a_run_learns_and_leaves_metrics_weights_and_a_page(whole: Path, tiny_model: Path) -> None:
    steps = [record for record in records(whole) if record["kind"] == "reading"]
    assert [record["step"] for record in steps] == [1, 2, 3, 4]
    assert all(record["tokens"] > 0 and record["gradient_norm"] > 0 for record in steps)
    held_out = [record for record in records(whole) if record["kind"] == "held_out"]
    assert [record["step"] for record in held_out] == [0, 2, 4]
    assert steps[-1]["loss"] < steps[0]["loss"] - 0.5
    assert held_out[-1]["loss"] < held_out[0]["loss"] - 0.5 and len({r["tokens"] for r in held_out}) == 1
    page = (whole / "report.html").read_text()
    assert "Held-out loss" in page and "held-out loss after" in page and "Sample rollouts" not in page
    assert (whole / "weights" / "model.safetensors").is_file() and list((whole / "tensorboard").iterdir())
    assert sorted(path.name for path in (whole / "checkpoints").iterdir()) == ["step-3", "step-4"]


def test_what_was_learnt_is_what_the_next_stage_begins_with(
    whole: Path, corpus: Path, build_cache: Path, tmp_path: Path
) -> None:
    ended = run(
        config(tmp_path, whole / "weights", text=[str(corpus)], tasks=[], steps=1), tmp_path / "out", build_cache
    )
    assert ended.code == 0, ended.stderr
    assert records(tmp_path / "out")[0]["loss"] == pytest.approx(records(whole)[-1]["loss"], abs=1e-5)


@pytest.mark.parametrize("seed", [1, 2])
def test_a_killed_run_goes_on_with_the_same_losses(
    seed: int, whole: Path, corpus: Path, tiny_model: Path, build_cache: Path, tmp_path: Path
) -> None:
    path, out = config(tmp_path, tiny_model, text=[str(corpus)], tasks=[]), tmp_path / "out"
    process = start(path, out, build_cache)
    kill_after(process, out, lines=seed, wait_s=random.Random(seed).uniform(0, 0.2))
    ended = run(path, out, build_cache)
    assert ended.code == 0, ended.stderr
    assert records(out) == records(whole)


def test_two_ranks_have_the_losses_and_the_weights_of_one_process(
    corpus: Path, tiny_model: Path, build_cache: Path, tmp_path: Path
) -> None:
    import torch
    from safetensors.torch import load_file

    policy = {"model": str(tiny_model), "dtype": "float32", "ranks": 2}
    path = config(tmp_path, tiny_model, text=[str(corpus)], tasks=[], policy=policy, rows=3)
    alone = config(write_folder(tmp_path / "alone"), tiny_model, text=[str(corpus)], tasks=[], rows=3)
    for place, out in ((path, tmp_path / "two"), (alone, tmp_path / "one")):
        ended = run(place, out, build_cache)
        assert ended.code == 0, ended.stderr
    for mine, theirs in zip(records(tmp_path / "two"), records(tmp_path / "one"), strict=True):
        assert mine["loss"] == pytest.approx(theirs["loss"], abs=2e-4) and mine["tokens"] == theirs["tokens"]
    one, two = (load_file(tmp_path / name / "weights" / "model.safetensors") for name in ("one", "two"))
    assert one.keys() == two.keys()
    assert all(torch.allclose(one[name], two[name], atol=1e-3) for name in one)


def write_folder(path: Path) -> Path:
    path.mkdir()
    return path


def test_ctrl_c_leaves_a_checkpoint_and_a_page(
    whole: Path, corpus: Path, tiny_model: Path, build_cache: Path, tmp_path: Path
) -> None:
    more = {"text": [str(corpus)], "tasks": []}
    path, out = config(tmp_path, tiny_model, checkpoint={"every": 1000}, steps=5000, **more), tmp_path / "out"
    process = start(path, out, build_cache)
    deadline = time.monotonic() + 200
    while not ((out / "metrics.jsonl").exists() and (out / "metrics.jsonl").read_bytes().count(b"\n") > 1):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGINT)
    stdout, stderr = process.communicate(timeout=120)
    assert process.returncode == 130, stderr
    said = json.loads(stdout)
    assert said["stopped"] and (out / "checkpoints" / f"step-{said['step']}").is_dir()
    assert (out / "report.html").is_file() and not (out / "weights").exists()
    n = max(4, said["step"])
    ended = run(config(tmp_path, tiny_model, steps=n, **more), out, build_cache)
    assert ended.code == 0, ended.stderr
    losses = [record["loss"] for record in records(out) if record["kind"] == "reading"]
    assert losses[:4] == [record["loss"] for record in records(whole) if record["kind"] == "reading"]


def test_a_document_with_deleted_code_is_left_out(
    tasks: Path, corpus: Path, tiny_model: Path, build_cache: Path, tmp_path: Path
) -> None:
    texts = {
        "short": f"import os\n\n{MODULE.format(short=SHORT, long=STUB)}", "renamed": RENAMED,
        "workspace": MODULE.format(short=STUB, long=STUB), "other": "def scale(v, f):\n    return v / f\n",
    }  # fmt: skip
    write(tmp_path / "more", {f"{name}.py": text for name, text in texts.items()})
    path = config(tmp_path, tiny_model, text=[str(corpus), str(tmp_path / "more")], tasks=[str(tasks)], steps=1)
    notes = trained(path, tmp_path / "out", build_cache)
    found = left_out(tmp_path / "out")
    assert {name: why for name, (why, _) in found.items()} == {
        f"{tmp_path}/more/{name}.py": "deleted code" for name in ("short", "renamed")
    }
    assert found[f"{tmp_path}/more/short.py"][1].startswith(f"{TASK}: scaled (")
    assert found[f"{tmp_path}/more/renamed.py"][1].startswith(f"{TASK}: joined_ranges (renamed")
    assert "left out: 2 documents: deleted code" in notes


def test_files_that_changed_are_not_gone_on_with(
    corpus: Path, tiny_model: Path, build_cache: Path, tmp_path: Path
) -> None:
    root = write_copy(corpus, tmp_path / "src")
    path = config(tmp_path, tiny_model, text=[str(root)], tasks=[], steps=1)
    trained(path, tmp_path / "out", build_cache)
    (root / "pkg" / "m3.py").write_text("x = 1\n")
    with pytest.raises(ConfigError, match="what is read is not what the run"):
        trained(path, tmp_path / "out", build_cache)
    with pytest.raises(ConfigError, match=r"length: the run in .* was begun with 64, not 32"):
        trained(config(tmp_path, tiny_model, text=[str(root)], tasks=[], length=32), tmp_path / "out", build_cache)


def write_copy(corpus: Path, to: Path) -> Path:
    write(to, {str(path.relative_to(corpus)): path.read_bytes() for path in corpus.rglob("*.py")})
    return to


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"text": ["/nowhere"], "tasks": []}, "/nowhere: there is no such folder"),
        ({"text": [], "tasks": []}, "text: "),
        ({"text": None, "tasks": []}, "text is missing"),
        ({"tasks": None}, "tasks is missing"),
        ({"tasks": ["/nowhere"]}, "/nowhere"),
        ({"tasks": [], "txt": 1}, "unknown key 'txt'"),
        ({"tasks": [], "stage": "pretrian"}, "stage: 'pretrian'"),
        ({"tasks": [], "warmup": 3, "decay": 3}, "more than 4 steps"),
        ({"tasks": [], "policy": {"model": "/nowhere"}}, "/nowhere"),
    ],
)
def test_wrong_configurations_are_told_and_leave_nothing_that_binds(
    more: dict[str, Any], said: str, corpus: Path, tiny_model: Path, build_cache: Path, tmp_path: Path
) -> None:
    path = config(tmp_path, tiny_model, **({"text": [str(corpus)]} | more))
    with pytest.raises(TaskgenError, match=said):
        trained(path, tmp_path / "out", build_cache)
    assert not (tmp_path / "out" / "config.yaml").exists()


# --- What is read ------------------------------------------------------------------------------------------


def test_sources_are_read_safely_and_each_content_once(tmp_path: Path) -> None:
    secret = tmp_path / "secret.py"
    secret.write_text("password = 'x'\n")
    write(tmp_path / "a", {
        "m.py": "x = 1\n", "copy.py": "x = 1\n", "latin.py": b"# \xe9\n", "nul.py": "a\0b", "empty.py": "\n",
        "notes.md": "text", "build/lib/m.py": "y = 2\n", ".git/hooks/h.py": "z = 3\n",
        "big.py": "#" * (MAX_FILE_BYTES + 1),
    })  # fmt: skip
    (tmp_path / "a" / "link.py").symlink_to(secret)
    found = collect([tmp_path / "a"])
    assert [document.text for document in found.documents] == ["x = 1\n"]
    why = {left.name.removeprefix(f"{tmp_path}/a/"): left.why for left in found.left_out}
    assert why == {
        "m.py": "a copy", "latin.py": "not UTF-8", "nul.py": "binary", "empty.py": "empty",
        "big.py": f"larger than {MAX_FILE_BYTES} bytes",
    }  # fmt: skip


def test_archives_are_sources(tmp_path: Path) -> None:
    packed = archive.pack_zst([ArchiveEntry(path="p/m.go", content=b"package p\n")])
    (tmp_path / "a.tar.zst").write_bytes(packed)
    with tarfile.open(tmp_path / "b-1.0.tar.gz", "w:gz") as tar:
        info = tarfile.TarInfo("b-1.0/m.rs")
        info.size = 9
        tar.addfile(info, io.BytesIO(b"fn f() {}"))
    found = collect([tmp_path / "a.tar.zst", tmp_path / "b-1.0.tar.gz"])
    assert [document.text for document in found.documents] == ["package p\n", "fn f() {}"]


def test_hostile_and_unknown_sources_are_refused(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "up.tar", "w") as tar:
        tar.addfile(tarfile.TarInfo("../up.py"))
    with pytest.raises(FormatError, match=r"up\.tar: unsafe path"):
        collect([tmp_path / "up.tar"])
    (tmp_path / "x.rar").write_bytes(b"Rar!")
    with pytest.raises(ConfigError, match="no archive of a known kind"):
        collect([tmp_path / "x.rar"])
    write(tmp_path / "docs", {"a.md": "text"})
    with pytest.raises(ConfigError, match="no source file"):
        collect([tmp_path / "docs"])


LENGTHS = (7, 30, 3, 2, 12, 9, 41, 5)


def reader(place: Place, *, cuts: bool = True, ahead: list[int] | None = None) -> Reader:
    def pieces(numbers: Any) -> list[Piece]:  # noqa: ANN401
        if ahead is not None:
            ahead.append(len(numbers))
        return [Piece(tuple(100 * n + i for i in range(LENGTHS[n])), 1) for n in numbers]

    return Reader(Corpus(len(LENGTHS), pieces, cuts=cuts), place, length=16 if cuts else 64, seed=3)


def test_each_token_is_read_once_in_each_epoch_in_another_order() -> None:
    place = Place()
    going, seen = reader(place), []
    while place.epoch < 3:
        for pieces in going.rows(1):
            assert sum(len(piece.ids) for piece in pieces) <= 16
            seen += [token for piece in pieces for token in piece.ids[piece.counted :]]
    counted = sum(length - 1 for length in LENGTHS)
    wanted = sorted(100 * n + i for n, length in enumerate(LENGTHS) for i in range(1, length))
    epochs = [seen[counted * i : counted * (i + 1)] for i in range(3)]
    assert all(sorted(epoch) == wanted for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]


@pytest.mark.parametrize("cuts", [True, False])
def test_reading_goes_on_from_its_place(cuts: bool) -> None:
    going = reader(Place(), cuts=cuts)
    going.rows(5)
    place = Place(**{name: getattr(going.place, name) for name in ("epoch", "documents", "tokens")})
    again = reader(place, cuts=cuts)
    assert going.rows(7) == again.rows(7)
    if not cuts:
        assert all(len(piece.ids) in LENGTHS for pieces in again.rows(9) for piece in pieces)


def test_rows_that_are_measured_hold_what_fits() -> None:
    pieces = [Piece(tuple(range(n)), counted) for n, counted in ((5, 1), (30, 1), (20, 17), (6, 2))]
    rows = rows_once(pieces, length=16, n=3)
    assert [[len(piece.ids) for piece in pieces] for pieces in rows] == [[5], [16], [6]]


def test_what_is_held_out_is_a_share_and_never_all() -> None:
    names = [f"n{i}" for i in range(100)]
    assert len(split(names, 0.1, 0)) == 10 and split(names, 0.1, 0) == split(names[::-1], 0.1, 0) != split(
        names, 0.1, 1
    )
    assert split(["a"], 0.5, 0) == set() and len(split(["a", "b"], 0.01, 0)) == 1 and split(names, 0.0, 0) == set()


def test_learning_rates_rise_and_fall(tmp_path: Path) -> None:
    found = load_stage(config(tmp_path, tmp_path, text=["x"], tasks=[], steps=10, warmup=4, decay=2))
    assert isinstance(found, PretrainConfig)
    assert [found.lr_factor(step) for step in range(1, 11)] == [0.25, 0.5, 0.75, 1, 1, 1, 1, 1, 1, 0.5]


# --- Accepted rollouts -------------------------------------------------------------------------------------

PROMPT, ANSWER = "def f(a):", "\n    return a\n"


def rollout(
    name: str,
    answer: str = ANSWER,
    reward: float | None = 1.0,
    ask: str = PROMPT,
    **changes: Any,  # noqa: ANN401
) -> dict[str, Any]:
    tokenizer = tokenizer_of(pattern=True)
    turns = [
        {"role": "user", "text": ask, "token_ids": tokenizer(ask)["input_ids"]},
        {"role": "assistant", "text": answer, "token_ids": [*tokenizer(answer)["input_ids"], tokenizer.eos_token_id]},
    ]
    return {"rollout_id": name, "instance_id": f"task-{name}", "reward": reward, "turns": turns} | changes


def write_rollouts(folder: Path, *listed: dict[str, Any]) -> Path:
    path = folder / "rollouts.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in listed))
    return path


def test_accepted_rollouts_are_learnt_and_others_are_counted(
    tasks: Path, tiny_model: Path, build_cache: Path, tmp_path: Path
) -> None:
    fine = [rollout(f"r{i}", f"\n    return a{i}\n") for i in range(6)]
    stranger = rollout("stranger")
    stranger["turns"][1]["token_ids"] = [i + 1 for i in stranger["turns"][1]["token_ids"]]
    untold = rollout("untold", turns=[{"role": "user", "text": PROMPT}, {"role": "assistant", "text": ANSWER}])
    file = write_rollouts(
        tmp_path, *fine, rollout("copy", "\n    return a0\n"), rollout("failed", reward=0.0),
        rollout("fault", reward=None), stranger, untold, rollout("long", "\n    return a" + " + a" * 80),
        rollout("held", instance_id=TASK), rollout("leak", f"\n{SHORT}", ask="def scaled(values, factor):"),
    )  # fmt: skip
    path = config(tmp_path, tiny_model, stage="sft", rollouts=[str(file)], tasks=[str(tasks)], steps=24)
    notes = trained(path, tmp_path / "out", build_cache)
    assert {name.rpartition(" ")[2]: why for name, (why, _) in left_out(tmp_path / "out").items()} == {
        "copy": "a copy", "stranger": "tokens of another tokenizer", "untold": "no token ids",
        "long": "longer than 64 tokens", "held": "a held-out task", "leak": "deleted code",
    }  # fmt: skip
    assert any("6 of 14 rollouts" in note for note in notes)
    steps = [record for record in records(tmp_path / "out") if record["kind"] == "reading"]
    held_out = [record for record in records(tmp_path / "out") if record["kind"] == "held_out"]
    assert steps[-1]["loss"] < 0.4 < 3 < steps[0]["loss"] and held_out[-1]["loss"] < held_out[0]["loss"] - 1
    n = len(tokenizer_of(pattern=True)("\n    return a0\n")["input_ids"]) + 1
    assert all(record["tokens"] % n == 0 for record in steps), "answers alone count, whole"


def test_rollouts_that_cannot_be_learnt_from_are_an_error(tiny_model: Path, build_cache: Path, tmp_path: Path) -> None:
    untold = rollout("untold", turns=[{"role": "user", "text": PROMPT}, {"role": "assistant", "text": ANSWER}])
    for listed, said in (
        ((rollout("failed", reward=0.0),), "none of 1 rollouts .* none has such a reward"),
        ((untold,), "none of 1 rollouts .* 1 no token ids"),
    ):
        file = write_rollouts(tmp_path, *listed)
        with pytest.raises(FormatError, match=said):
            trained(config(tmp_path, tiny_model, stage="sft", rollouts=[str(file)]), tmp_path / "out", build_cache)
    found = load_stage(config(tmp_path, tiny_model, stage="sft", rollouts=[str(file)]))
    assert isinstance(found, SftConfig) and found.tasks == []
