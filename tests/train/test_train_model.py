"""The GPT and its optimiser's parts, on sizes that take milliseconds."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F  # noqa: N812

from lowtide.train.model import GPT, Shape, rotary_table, rotate
from lowtide.train.settings import Settings
from lowtide.train.trainer import build_optimizer, decay_groups, learning_rate

TINY = Shape(vocab_size=31, block_size=16, n_layer=2, n_head=2, n_embd=16)


@pytest.fixture
def model() -> GPT:
    torch.manual_seed(0)
    return GPT(TINY)


def tokens(rows: int = 3, length: int = 16, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, 31, (rows, length), generator=torch.Generator().manual_seed(seed))


def test_a_new_model_is_as_good_as_guessing(model: GPT) -> None:
    _, loss = model(tokens(8), tokens(8, seed=1))
    assert loss is not None
    assert loss.item() == pytest.approx(math.log(31), abs=0.05)


def test_a_later_token_changes_no_earlier_logits(model: GPT) -> None:
    before = tokens()
    after = before.clone()
    after[:, 10] = (after[:, 10] + 1) % 31
    old, new = model(before)[0], model(after)[0]
    torch.testing.assert_close(old[:, :10], new[:, :10])
    assert not torch.allclose(old[:, 10:], new[:, 10:])


def test_the_loss_is_the_cross_entropy_of_the_logits(model: GPT) -> None:
    x, y = tokens(), tokens(seed=1)
    logits, loss = model(x, y)
    by_hand = -F.log_softmax(logits, -1).gather(-1, y.unsqueeze(-1)).mean()
    torch.testing.assert_close(loss, by_hand)


def test_one_table_reads_tokens_and_scores_them(model: GPT) -> None:
    assert model.head.weight is model.embed.weight
    assert model.parameters_count() == 31 * 16 + 2 * (12 * 16 * 16 + 2 * 16) + 16


def test_rotation_keeps_lengths_and_depends_only_on_distance() -> None:
    turns = rotary_table(12, 8)
    q, k = torch.randn(2, 8, generator=torch.Generator().manual_seed(0))
    turned_q, turned_k = rotate(q.expand(12, 8), turns), rotate(k.expand(12, 8), turns)
    torch.testing.assert_close(turned_q.norm(dim=-1), q.norm().expand(12))
    scores = turned_q @ turned_k.T
    for distance in range(-5, 6):
        diagonal = torch.diagonal(scores, offset=distance)
        torch.testing.assert_close(diagonal, diagonal[0].expand_as(diagonal))
    assert not torch.allclose(scores[0, 0], scores[0, 5])


def test_dropout_acts_while_training_only() -> None:
    torch.manual_seed(0)
    model = GPT(Shape(31, 16, 1, 2, 16, dropout=0.5))
    x = tokens()
    assert not torch.equal(model(x)[0], model(x)[0])
    model.eval()
    assert torch.equal(model(x)[0], model(x)[0])


def test_a_model_learns_a_repeated_batch(model: GPT) -> None:
    x, y = tokens(), tokens(seed=1)
    optimizer = build_optimizer(model, Settings(learning_rate=1e-2), torch.device("cpu"))
    first = last = math.nan
    for _ in range(60):
        loss = model(x, y)[1]
        assert loss is not None
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        first, last = (loss.item() if math.isnan(first) else first), loss.item()
    assert last < first / 2


def test_sampling_stays_in_the_vocabulary_and_repeats_with_its_seed(model: GPT) -> None:
    model.eval()
    drawn = {seed: list(model.sampled([1], 40, seed=seed)) for seed in (3, 4)}
    assert drawn[3] == list(model.sampled([1], 40, seed=3)) != drawn[4]
    assert len(drawn[3]) == 40  # more than the window holds
    assert all(0 <= token < 31 for token in drawn[3])


def test_top_one_sampling_takes_the_likeliest_token(model: GPT) -> None:
    model.eval()
    start = tokens(1, 5)
    likeliest = int(model(start)[0][0, -1].argmax())
    assert list(model.sampled(start[0].tolist(), 1, seed=0, top_k=1)) == [likeliest]


def test_matrices_decay_and_gains_do_not(model: GPT) -> None:
    matrices, gains = decay_groups(model, 0.1)
    assert (matrices["weight_decay"], gains["weight_decay"]) == (0.1, 0.0)
    assert len(matrices["params"]) == 1 + 2 * 4  # type: ignore[arg-type]  # the tied table counts once
    assert len(gains["params"]) == 2 * 2 + 1  # type: ignore[arg-type]


def test_the_learning_rate_rises_then_falls_along_a_cosine_then_stays() -> None:
    settings = Settings(learning_rate=1.0, min_lr=0.1, warmup_iters=10, lr_decay_iters=110, max_iters=200)
    rates = [learning_rate(step, settings) for step in range(200)]
    assert rates[0] == pytest.approx(1 / 11)
    assert rates[:11] == sorted(rates[:11])
    assert rates[10] == pytest.approx(1.0) == max(rates)
    assert rates[60] == pytest.approx(0.55)  # half way: the middle between highest and lowest
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert set(rates[110:]) == {0.1}


def test_the_lowest_rate_is_a_tenth_unless_said() -> None:
    assert Settings(learning_rate=0.02).lowest_rate == pytest.approx(0.002)
    assert Settings(min_lr=0.0).lowest_rate == 0.0
