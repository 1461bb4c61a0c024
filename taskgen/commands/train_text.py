"""``taskgen train`` with ``stage: pretrain`` (repository text) and ``stage: sft`` (accepted rollouts)."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from taskgen.atomic import locked, replacing_file
from taskgen.commands.training_run import (
    CHECKPOINTS,
    LEFT_OUT,
    WEIGHTS,
    Options,
    Trained,
    gently_stopped,
    keep_config,
    must_be_as_begun,
)
from taskgen.errors import ConfigError, FormatError
from taskgen.training.accepted import accepted
from taskgen.training.clean import clean
from taskgen.training.documents import Document, LeftOut, collect
from taskgen.training.learner import Learner
from taskgen.training.metrics import METRICS_FILE, MetricsWriter, read_metrics
from taskgen.training.page import write_page
from taskgen.training.progress import TrainingProgress
from taskgen.training.reading import ReadingLoop, ReadingState, digest_of, restore, split
from taskgen.training.reading_config import PretrainConfig, SftConfig
from taskgen.training.rows import Corpus, Piece, Reader, Row, rows_once

_LOCK_WAIT_S = 2.0
#: Held-out documents that are tokenized for each row that is measured.
_DOCUMENTS_A_ROW = 4


@dataclass(frozen=True, slots=True)
class _Material:
    """What is read and what is held out. ``kind``: a word for it; ``digest``: of both; ``left_out``: what is neither,
    and why."""

    kind: str
    corpus: Corpus
    held_out: list[Row]
    digest: str
    left_out: list[LeftOut]


@dataclass(frozen=True, slots=True)
class _Text:
    """Documents that are read, those that are held out, and what is neither."""

    read: list[Document]
    held_out: list[Document]
    left_out: list[LeftOut]


def train_text(path: Path, config: PretrainConfig | SftConfig, options: Options) -> Trained:
    """Train on text or on rollouts, or go on with the run that is in ``options.out``.

    Raises:
        ConfigError: a source is not there; the configuration, or the text, is not what the run began with.
        FormatError: there is nothing to read, or it cannot be read.
        SourceError: an archive is hostile.
        PrerequisiteError: no torch, no weights.
        PolicyFault, StoreError, Interrupted: what was saved stays, and the same command goes on from there.
    """
    must_be_as_begun(path, config, options.out)
    # Before the trainer starts, which loads weights.
    text = _text(config, options) if isinstance(config, PretrainConfig) else None
    setup = config.setup(options.cache)
    with (
        locked(options.out / METRICS_FILE, timeout_s=_LOCK_WAIT_S),
        Learner(config.policy, setup, options.out / CHECKPOINTS) as learner,
        TrainingProgress(config.steps, quiet=options.quiet) as progress,
    ):
        if isinstance(config, PretrainConfig):
            assert text is not None
            material = _of_text(config, text, learner)
        else:
            material = _of_rollouts(config, learner, options)
        _report(material, options)
        state = _state_of(learner, material, options)
        keep_config(path, options.out)
        resume_step = learner.step if learner.progress else -1
        with MetricsWriter(options.out, resume_step=resume_step, on_note=progress.note) as metrics:
            loop = ReadingLoop(
                config=config, learner=learner, metrics=metrics, progress=progress, state=state,
                reader=Reader(material.corpus, state.place, length=config.length, seed=config.seed),
                n_documents=material.corpus.size, held_out=material.held_out, stop=threading.Event(),
            )  # fmt: skip
            with gently_stopped(loop.stop, progress.note):
                loop.run()
        if learner.step >= config.steps:
            learner.export(setup, (options.out / WEIGHTS).resolve())
        return Trained(
            step=learner.step, stopped=learner.step < config.steps, page=write_page(options.out),
            records=tuple(read_metrics(metrics.path)), left_out=_counts(material),
        )  # fmt: skip


def _text(config: PretrainConfig, options: Options) -> _Text:
    found = clean(collect(config.text), config.tasks, options.on_note)
    held = split([document.group for document in found.documents], config.evaluate.share, config.seed)
    read = [document for document in found.documents if document.group not in held]
    if not read:
        n = len(found.left_out)
        raise FormatError(f"text: nothing is left to read: {n} documents were left out", hint="give other sources")
    return _Text(read, [document for document in found.documents if document.group in held], found.left_out)


def _of_text(config: PretrainConfig, text: _Text, learner: Learner) -> _Material:
    def pieces(documents: Sequence[Document]) -> list[Piece]:
        return [Piece(tuple(ids), 1) for ids in learner.encode([document.text for document in documents])]

    n = config.evaluate.rows
    return _Material(
        kind="documents",
        corpus=Corpus(len(text.read), lambda numbers: pieces([text.read[i] for i in numbers]), cuts=True),
        held_out=rows_once(pieces(text.held_out[: n * _DOCUMENTS_A_ROW]), length=config.length, n=n),
        digest=digest_of(document.text for document in (*text.read, *text.held_out)),
        left_out=text.left_out,
    )


def _of_rollouts(config: SftConfig, learner: Learner, options: Options) -> _Material:
    found = accepted(config, learner.decode, options.on_note)
    held = split([example.document.group for example in found.examples], config.evaluate.share, config.seed)
    read = [example.piece for example in found.examples if example.document.group not in held]
    apart = [example.piece for example in found.examples if example.document.group in held]
    options.on_note(f"{len(read) + len(apart)} of {found.n_rollouts} rollouts are learnt from or held out")
    return _Material(
        kind="rollouts",
        corpus=Corpus(len(read), lambda numbers: [read[i] for i in numbers], cuts=False),
        held_out=rows_once(apart, length=config.length, n=config.evaluate.rows),
        digest=digest_of(str(piece) for piece in (*read, *apart)),
        left_out=found.left_out,
    )


def _report(material: _Material, options: Options) -> None:
    """Say how much is left out, and leave beside the run what, and why."""
    for why, n in _counts(material).items():
        options.on_note(f"left out: {n} {material.kind}: {why}")
    with replacing_file(options.out / LEFT_OUT) as scratch:
        scratch.write_text("".join(json.dumps(asdict(left)) + "\n" for left in material.left_out), "utf-8")
        scratch.chmod(0o644)


def _counts(material: _Material) -> dict[str, int]:
    return dict(Counter(left.why for left in material.left_out))


def _state_of(learner: Learner, material: _Material, options: Options) -> ReadingState:
    if not learner.progress:
        return ReadingState(corpus=material.digest)
    state = restore(learner.progress)
    if state.corpus != material.digest:
        raise ConfigError(
            f"what is read is not what the run in {options.out} began with",
            hint="choose another --out, or give the files, tasks and evaluate.share as they were",
        )
    options.on_note(f"going on from step {learner.step}")
    return state
