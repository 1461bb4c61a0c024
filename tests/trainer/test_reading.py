"""Cross-entropy over packed rows: as of sequences apart, of the tokens that count, the same on any number of ranks."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from decoder_cases import Run, trainee_of, weights
from ranks import Ranks
from test_grpo import DENSE, decoder

from tests.tiny_model import tokenizer_of
from trainer.meshes import MeshSizes
from trainer.packing import Piece, pack_apart
from trainer.reading import Reading, decoded, encoded, end_of_text, measure, read, rows_of

ROWS = [
    [Piece(ids=(3, 1, 4, 1, 5)), Piece(ids=(9, 2, 6, 5), counted=2)],
    [Piece(ids=tuple(i * i % 64 for i in range(300)))],  # more tokens than a chunk of logits
    [Piece(ids=(5, 3)), Piece(ids=(8, 9, 7, 9, 3), counted=4), Piece(ids=(2, 3, 8))],
]


def expected_loss(model: Any) -> torch.Tensor:  # noqa: ANN401 - a decoder
    """Each piece by itself, the mean over the counted tokens of all."""
    losses = []
    for piece in (piece for row in ROWS for piece in row):
        logps = model(torch.tensor([piece.ids[:-1]]))[0].log_softmax(-1)
        losses += [-logps[i - 1, piece.ids[i]] for i in range(piece.counted, len(piece.ids))]
    assert len(losses) == 4 + 2 + 299 + 1 + 1 + 2
    return torch.stack(losses).mean()


def test_the_loss_is_that_of_the_counted_tokens_of_pieces_apart() -> None:
    expected = expected_loss(decoder(DENSE)).item()
    found = measure(decoder(DENSE), ROWS)
    assert found.loss == pytest.approx(expected, abs=1e-5) and found.tokens == 309


def test_the_gradient_of_a_step_is_that_of_the_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    trainee, apart = trainee_of(Run(config=DENSE)), trainee_of(Run(config=DENSE)).model
    expected_loss(apart).backward()
    kept = {}

    def keep() -> None:
        kept.update({name: p.grad.clone() for name, p in trainee.model.named_parameters() if p.grad is not None})

    monkeypatch.setattr(trainee.optimizer, "step", keep)
    found = read(trainee.model, trainee.optimizer, ROWS, max_norm=math.inf)
    for name, parameter in apart.named_parameters():
        assert parameter.grad is not None
        assert (kept[name] - parameter.grad).abs().max() <= 2e-5 * parameter.grad.abs().max(), name
    norm = math.sqrt(sum(p.grad.square().sum().item() for p in apart.parameters() if p.grad is not None))
    assert found.gradient_norm == pytest.approx(norm, rel=1e-4)


def test_a_known_answer() -> None:
    """All logits alike: each token costs log V, however many there are."""
    model = decoder(DENSE)
    with torch.no_grad():
        model.lm_head.weight.zero_()
    assert measure(model, ROWS).loss == pytest.approx(math.log(DENSE.vocab_size), abs=1e-6)


def test_only_the_answer_is_learnt() -> None:
    trainee = trainee_of(Run(config=DENSE))
    prompt, answer, other = (3, 1, 4), (1, 5, 9), (7, 2, 2)
    before = [measure(trainee.model, [[Piece(ids=(*prompt, *a), counted=3)]]).loss for a in (answer, other)]
    asked = measure(trainee.model, [[Piece(ids=prompt)]]).loss
    for _ in range(40):
        step = read(trainee.model, trainee.optimizer, [[Piece(ids=(*prompt, *answer), counted=3)]], max_norm=1.0)
        assert step.tokens == 3
    after = [measure(trainee.model, [[Piece(ids=(*prompt, *a), counted=3)]]).loss for a in (answer, other)]
    assert after[0] < 0.2 < 3 < before[0] and after[1] > before[1]
    assert measure(trainee.model, [[Piece(ids=prompt)]]).loss > 0.8 * asked, "the prompt was not learnt by heart"


def curve(sizes: MeshSizes | None) -> list[Reading]:
    trainee = trainee_of(Run(config=DENSE, sizes=sizes))
    rank, world = (dist.get_rank(), dist.get_world_size()) if sizes else (0, 1)
    steps = [ROWS, ROWS[:1], ROWS[1:]]  # a rank may be without a row
    found = [read(trainee.model, trainee.optimizer, rows[rank::world], max_norm=1.0) for rows in steps]
    return [*found, measure(trainee.model, ROWS[rank::world])]


def test_one_two_and_four_ranks_have_the_same_losses() -> None:
    expected = curve(None)
    assert expected[0].tokens == 309 and expected[1].tokens == 6 and expected[3].loss < expected[0].loss
    for world in (2, 4):
        with Ranks(world) as pool:
            for found in pool.run(curve, MeshSizes(world=world)):
                for theirs, ours in zip(found, expected, strict=True):
                    assert theirs.tokens == ours.tokens
                    assert theirs.loss == pytest.approx(ours.loss, rel=1e-3)
                    assert theirs.gradient_norm == pytest.approx(ours.gradient_norm, rel=1e-3)


def test_learning_rates_are_scaled_for_one_step() -> None:
    trainee = trainee_of(Run(config=DENSE))
    before, rates = weights(trainee.model), [group["lr"] for group in trainee.optimizer.param_groups]
    read(trainee.model, trainee.optimizer, ROWS, max_norm=1.0, lr_factor=0.0)
    assert all(torch.equal(before[name], tensor) for name, tensor in weights(trainee.model).items())
    assert [group["lr"] for group in trainee.optimizer.param_groups] == rates


def test_no_row_and_no_token_that_counts_is_an_error() -> None:
    trainee = trainee_of(Run(config=DENSE))
    with pytest.raises(ValueError, match="no row has a token"):
        read(trainee.model, trainee.optimizer, [], max_norm=1.0)
    for ids, counted in (((1,), 1), ((1, 2), 0), ((1, 2), 2)):
        with pytest.raises(ValueError, match="none to predict"):
            Piece(ids=ids, counted=counted)
    with pytest.raises(ValueError, match="token 64: the model has those from 0 to 63"):
        rows_of({"rows": [[{"ids": [1, 64], "counted": 1}]]}, 64)


def test_pieces_do_not_see_each_other() -> None:
    packed = pack_apart([Piece(ids=(1, 2, 3)), Piece(ids=(4, 5, 6))])
    assert packed.mask_TT.tolist() == [
        [True, False, False, False], [True, True, False, False], [False, False, True, False], [False, False, True, True]
    ]  # fmt: skip
    assert packed.positions_T.tolist() == [0, 1, 0, 1] and packed.target_N.tolist() == [2, 3, 5, 6]


# --- Tokens ----------------------------------------------------------------------------------------------


def test_a_document_ends_with_a_token_that_its_text_cannot_hold() -> None:
    tokenizer = tokenizer_of(pattern=True)
    plain, hostile = encoded(tokenizer, ["def f(a):\n", "a = '<|end|>'\n"])
    assert plain[-1] == hostile[-1] == tokenizer.eos_token_id
    assert hostile.count(tokenizer.eos_token_id) == 1, "what a file spells is text"
    assert decoded(tokenizer, [plain, hostile, [1, 10_000]]) == ["def f(a):\n", "a = '<|end|>'\n", None]


def test_a_tokenizer_without_an_end_of_text_is_refused() -> None:
    with pytest.raises(ValueError, match="no token that ends a text"):
        end_of_text(SimpleNamespace(all_special_tokens=[], eos_token_id=None))  # type: ignore[arg-type]


def test_exported_weights_are_loaded_as_they_were(tiny_model: Path, tmp_path: Path) -> None:
    from trainer.export import export
    from trainer.pretrained import load_pretrained

    loaded = load_pretrained(str(tiny_model), tmp_path)
    with torch.no_grad():
        for parameter in loaded.model.parameters():
            parameter.add_(0.25)
    export(loaded.model, str(tiny_model), tmp_path, tmp_path / "weights")
    again = load_pretrained(str(tmp_path / "weights"), tmp_path)
    for name, parameter in again.model.named_parameters():
        assert torch.equal(parameter, loaded.model.get_parameter(name)), name
    assert again.tokenizer("def f")["input_ids"] == loaded.tokenizer("def f")["input_ids"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["weights"]
