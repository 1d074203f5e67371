"""The pieces of the model with their gradients written out give what the plain formulas give."""

from __future__ import annotations

import math
import os
import subprocess
import sys

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from lowtide.train.gradients import (
    EPSILON,
    ROWS,
    by_hand,
    multiplied,
    normed_heads,
    normed_product,
    product,
    scored_loss,
)
from lowtide.train.model import GPT, Shape, rotary_table, rotate

SHAPE = Shape(vocab_size=31, block_size=16, n_layer=2, n_head=2, n_embd=16)


def drawn(*sizes: int, seed: int = 0) -> Tensor:
    return torch.randn(*sizes, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).requires_grad_()


def gradients(found: tuple[Tensor, Tensor], of: tuple[Tensor, ...], mixed: tuple[float, float]) -> tuple[Tensor, ...]:
    logits, loss = found
    return torch.autograd.grad(mixed[0] * logits.square().sum() + mixed[1] * loss, of)


@pytest.mark.parametrize("mixed", [(0.0, 3.0), (1.0, 0.0), (1.0, 2.0)])
def test_the_scored_loss_and_its_gradients_are_those_of_the_cross_entropy(mixed: tuple[float, float]) -> None:
    x, table, targets = drawn(6, 4), drawn(9, 4, seed=1), torch.tensor([0, 8, 3, 3, 1, 5])
    found = scored_loss(x, table, targets, True)
    plain = (x @ table.t(), F.cross_entropy(x @ table.t(), targets))
    torch.testing.assert_close(found, plain)
    torch.testing.assert_close(gradients(found, (x, table), mixed), gradients(plain, (x, table), mixed))


def test_the_loss_alone_has_the_gradients_of_the_cross_entropy() -> None:
    x, table, targets = drawn(6, 4), drawn(9, 4, seed=1), torch.tensor([0, 8, 3, 3, 1, 5])
    for keep in (True, False):
        logits, loss = scored_loss(x, table, targets, keep)
        assert len(logits) == 6 * keep
        plain = F.cross_entropy(x @ table.t(), targets)
        torch.testing.assert_close(loss, plain)
        found, wanted = (torch.autograd.grad(one * 3, (x, table)) for one in (loss, plain))
        torch.testing.assert_close(found, wanted)


def test_a_target_the_model_rules_out_has_a_finite_loss_that_teaches() -> None:
    x = torch.tensor([[1.0]], requires_grad=True)
    _, loss = scored_loss(x, torch.tensor([[500.0], [-500.0]]), torch.tensor([1]), False)
    loss.backward()  # type: ignore[no-untyped-call]  # as torch ships it
    assert math.isfinite(float(loss.detach()))
    assert x.grad is not None
    assert float(x.grad) == 1000.0


def test_rows_scored_in_several_goes_are_scored_as_one() -> None:
    count = 2 * ROWS + 3
    x, table = drawn(count, 4), drawn(9, 4, seed=1)
    targets = torch.randint(0, 9, (count,), generator=torch.Generator().manual_seed(2))
    found, plain = scored_loss(x, table, targets, True)[1], F.cross_entropy(x @ table.t(), targets)
    torch.testing.assert_close(found, plain)
    torch.testing.assert_close(torch.autograd.grad(found, (x, table)), torch.autograd.grad(plain, (x, table)))


def test_heads_are_the_normed_product_turned() -> None:
    x, gain, weight, turns = drawn(2, 5, 8), drawn(8, seed=1), drawn(24, 8, seed=2), rotary_table(5, 4).double()
    found = normed_heads(x, gain, weight, turns)
    qkv = F.linear(F.rms_norm(x, (8,), gain, EPSILON), weight).view(2, 5, 3, 2, 4)
    q, k, v = qkv.permute(2, 0, 3, 1, 4)
    plain = rotate(q, turns) @ rotate(k, turns).transpose(-1, -2)  # in float32
    torch.testing.assert_close((found[0] @ found[1].transpose(-1, -2)).float(), plain.float(), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(found[2], v)
    mixed = tuple(q @ k.transpose(-1, -2) @ v for q, k, v in (found, (rotate(q, turns), rotate(k, turns), v)))
    ours, theirs = (torch.autograd.grad(one.square().sum(), (x, gain, weight)) for one in mixed)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-3)  # through products that hand back turned gradients
    assert torch.autograd.gradcheck(lambda *given: normed_heads(given[0], given[1], given[2], turns), (x, gain, weight))


def test_a_normed_product_is_torchs_own_norm_and_product() -> None:
    x, gain, weight = drawn(2, 3, 8), drawn(8, seed=1), drawn(5, 8, seed=2)
    plain = F.linear(F.rms_norm(x, (8,), gain, EPSILON), weight)
    torch.testing.assert_close(normed_product(x, gain, weight), plain)
    assert torch.autograd.gradcheck(normed_product, (x, gain, weight))


def test_a_model_by_hand_learns_what_the_plain_one_learns() -> None:
    torch.manual_seed(0)
    model = GPT(SHAPE)
    plain = GPT(SHAPE).double()  # the pieces are for float32 alone
    plain.load_state_dict(model.state_dict())
    x, y = torch.randint(0, 31, (2, 3, 16), generator=torch.Generator().manual_seed(1))
    assert by_hand(model.embed(x))
    assert not by_hand(plain.embed(x))
    for one in (model, plain):
        one(x, y)[1].backward()
    for (name, ours), theirs in zip(model.named_parameters(), plain.parameters(), strict=True):
        assert ours.grad is not None
        torch.testing.assert_close(ours.grad.double(), theirs.grad, rtol=1e-3, atol=1e-6, msg=name)


@pytest.mark.parametrize("sizes", [(7, 5, 3), (33, 128, 384), (40, 16, 1), (1, 1, 1), (0, 4, 6)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_products_and_their_gradients_are_torchs_own_whoever_multiplies(
    sizes: tuple[int, int, int], dtype: torch.dtype
) -> None:
    rows, inner, outer = sizes
    x, weight = (
        drawn(*size, seed=seed).detach().to(dtype) for seed, size in enumerate([(rows, inner), (outer, inner)])
    )
    given = drawn(rows, outer, seed=2).detach().to(dtype)
    for turned in (False, True):  # as weights are where gradients need them: not in one piece
        x, weight = (x, weight) if not turned else (x.t().contiguous().t(), weight.t().contiguous().t())
        for one in (x, weight):
            one.requires_grad_()
        found, plain = multiplied(x, weight), x @ weight.t()
        torch.testing.assert_close(found, plain, rtol=1e-5, atol=1e-4)
        ours, theirs = (torch.autograd.grad(one, (x, weight), given) for one in (found, plain))
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-4)
        x, weight = x.detach(), weight.detach()
    torch.testing.assert_close(product(x.view(1, rows, inner), weight)[0], x @ weight.t(), rtol=1e-5, atol=1e-4)


def test_without_registers_of_512_bits_torch_multiplies_as_it_does_alone() -> None:
    script = (
        "import torch; from lowtide.train.gradients import _onednn, product\n"
        "x = torch.randn(64, 32); assert _onednn() is None; assert torch.equal(product(x, x), x @ x.t())"
    )
    subprocess.run([sys.executable, "-c", script], check=True, env={**os.environ, "ATEN_CPU_CAPABILITY": "avx2"})
