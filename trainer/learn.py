"""``python -m trainer learn``: a policy that another process samples from and trains, in JSON lines (stdin, stdout).

The first line is the set-up (``trainer.learner.Setup``); the answer is ``{"version", "step", "progress"}``, or
``{"error"}`` and the end. Then, as ``do`` says:

    generate    prompts, seeds, max_tokens, temperature as in ``trainer.serve``; the same answer
    learn       groups (``prompt``, ``samples``, ``behaviour``, ``rewards``) and turns (``context``, ``tokens``,
                ``behaviour``, ``hinted``): the metrics of the step. Prompts are ids or as in ``trainer.serve``.
    read        rows (lists of ``{"ids", "counted"}``), lr_factor: a step of cross-entropy; ``trainer.reading.Reading``
    measure     rows: their loss, without a step
    encode      texts: their ``ids``, as documents; ``decode``: ids: their ``texts``
    save        keep, progress: a checkpoint in the set-up's folder
    export      model, cache (as in the set-up), folder: the weights as any other program loads them

Under torchrun each rank runs this. Rank 0 alone hears and speaks; it tells the others.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from pydantic import TypeAdapter

from trainer import checkpoint
from trainer.checkpoint import CheckpointError
from trainer.conversation import hear, take_stdout
from trainer.export import export
from trainer.feedback import Turn
from trainer.grpo import step
from trainer.learner import Learner, Setup, learner_of
from trainer.meshes import MeshError
from trainer.pretrained import Pretrained, WeightsError
from trainer.reading import decoded, encoded, measure, read, rows_of
from trainer.rows import Group
from trainer.serve import ids_of, respond
from trainer.whole import kept_whole

#: How long ranks wait for the next request: as long as it takes to grade.
_PATIENCE = timedelta(days=7)
_SETUP: TypeAdapter[Setup] = TypeAdapter(Setup)


def main(argv: Sequence[str]) -> int:
    """Answer requests until stdin ends; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m trainer learn", description=__doc__)
    parser.add_argument("--checkpoints", type=Path, required=True, help="folder of the run's checkpoints")
    parser.add_argument("--threads", type=int, default=1, help="threads of arithmetic, of each rank")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    arguments = parser.parse_args(argv)
    say = take_stdout()
    torch.set_num_threads(arguments.threads)
    ranks = _Ranks(arguments.device)
    learner: Learner | None = None
    while (request := ranks.hear()) is not None:
        try:
            if learner is None:
                learner = learner_of(_SETUP.validate_python(request), arguments.device)
                answer = _begun(learner, arguments.checkpoints)
            else:
                answer = _answer(learner, request, arguments.checkpoints)
        except (WeightsError, MeshError, CheckpointError, ValueError, KeyError, TypeError, OSError) as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        if ranks.first:
            say(answer)
        if learner is None or ("error" in answer and ranks.world > 1):
            return 1  # ranks that went different ways cannot go on together
    return 0


class _Ranks:
    """The default process group; of one process if there is no launcher."""

    def __init__(self, device: str) -> None:
        backend = "nccl" if device == "cuda" else "gloo"
        if "RANK" in os.environ:
            dist.init_process_group(backend)
        else:
            dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
        if device == "cuda":
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
            torch.set_default_device("cuda")
        self.first, self.world = dist.get_rank() == 0, dist.get_world_size()
        self._control = dist.new_group(backend="gloo", timeout=_PATIENCE)

    def hear(self) -> dict[str, Any] | None:
        """The next request, on every rank. None: there are no more."""
        said: list[Any] = [hear()] if self.first else [None]
        if self.world > 1:
            dist.broadcast_object_list(said, src=0, group=self._control, device=torch.device("cpu"))
        request: dict[str, Any] | None = said[0]
        return request


def _begun(learner: Learner, folder: Path) -> dict[str, Any]:
    progress = learner.load(folder) if checkpoint.newest(folder) is not None else ""
    return {"step": learner.step, "progress": progress}


def _answer(learner: Learner, request: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    match request["do"]:
        case "generate":
            return _generate(learner, request)
        case "learn":
            return _learn(learner, request)
        case "read" | "measure" as do:
            return _read(learner, request, learns=do == "read")
        case "encode":
            return {"ids": encoded(learner.tokenizer, request["texts"])}
        case "decode":
            return {"texts": decoded(learner.tokenizer, request["ids"])}
        case "export":
            export(learner.model, str(request["model"]), Path(request["cache"]), Path(request["folder"]))
            return {}
        case "save":
            path = learner.save(folder, keep=int(request["keep"]), progress=str(request["progress"]))
            return {"folder": str(path)}
    raise ValueError(f"do = {request['do']!r}: generate, learn, read, measure, encode, decode, save or export")


def _generate(learner: Learner, request: Mapping[str, Any]) -> dict[str, Any]:
    """Each rank samples for its share of the prompts."""
    share = {**request, "prompts": learner.mine(request["prompts"]), "seeds": learner.mine(request["seeds"])}
    idle = not share["prompts"]
    if idle:  # one pass, so that other ranks have its weights
        share |= {"prompts": [{"ids": [0]}], "seeds": [[0]], "max_tokens": 1}
    policy = Pretrained("", learner.model, learner.tokenizer)
    with kept_whole(learner.model):
        mine = respond(policy, share)["prompts"]
    shares: list[Any] = [None] * learner.meshes.sizes.dp
    dist.all_gather_object(shares, [] if idle else mine)
    n = len(request["prompts"])
    return {"prompts": [shares[i % len(shares)][i // len(shares)] for i in range(n)]}


def _learn(learner: Learner, request: Mapping[str, Any]) -> dict[str, Any]:
    groups = [_group(learner, group) for group in learner.mine(request["groups"])]
    turns = [_turn(learner, turn) for turn in learner.mine(request.get("turns", []))]
    metrics = step(learner.model, learner.optimizer, groups, learner.settings, turns=turns, reference=learner.reference)
    learner.step += 1
    return {"step": learner.step, "metrics": asdict(metrics)}


def _read(learner: Learner, request: Mapping[str, Any], *, learns: bool) -> dict[str, Any]:
    rows = learner.mine(rows_of(request, learner.model.config.vocab_size))
    if not learns:
        return {"metrics": asdict(measure(learner.model, rows))}
    factor = float(request.get("lr_factor", 1.0))
    found = read(learner.model, learner.optimizer, rows, max_norm=learner.settings.max_norm, lr_factor=factor)
    learner.step += 1
    return {"step": learner.step, "metrics": asdict(found)}


def _group(learner: Learner, group: Mapping[str, Any]) -> Group:
    return Group(
        prompt=tuple(ids_of(learner.tokenizer, group["prompt"])),
        samples=tuple(map(tuple, group["samples"])),
        behaviour=tuple(map(tuple, group["behaviour"])),
        rewards=tuple(group["rewards"]),
        hinted=frozenset(group.get("hinted", ())),
    )


def _turn(learner: Learner, turn: Mapping[str, Any]) -> Turn:
    return Turn(
        context=tuple(ids_of(learner.tokenizer, turn["context"])),
        tokens=tuple(turn["tokens"]),
        behaviour=tuple(turn["behaviour"]),
        hinted=tuple(ids_of(learner.tokenizer, turn["hinted"])) if turn.get("hinted") else (),
    )
