"""Pieces of the model with their gradients written out, and the product of matrices that all of them use.

Forwards they are plain formulas, backwards what autograd would find, in fewer passes over memory: a CPU spent a fifth
of a small model's time in just these passes. The torch code each replaces stands beside its call in ``model.py``.

Most of the rest is products. torch leaves those of float32 to MKL, which uses half of the registers that processors of
other makers have; oneDNN, which torch holds as well, uses all. On AMD Zen 5 every product took 0.4 to 0.6 of MKL's
time, and a whole step of the default model 0.65.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F  # noqa: N812  # the name every torch reader knows

EPSILON = torch.finfo(torch.float32).eps  # torch's own of an RMS norm
ROWS = 2048  # scored in one go: 32 MiB of logits with 4,096 ids. Fewer, to stay in the CPU's cache, were no faster
LEAST_CHANCE = torch.finfo(torch.float32).tiny  # of a target, so that its loss is finite: at most 87 nats


def by_hand(x: Tensor) -> bool:
    """Whether the pieces whose gradients are written out are for this tensor; torch.compile joins passes itself."""
    return (
        x.dtype is torch.float32 and not torch.is_autocast_enabled(x.device.type) and not torch.compiler.is_compiling()
    )


# Products


@cache
def _onednn() -> Callable[..., Tensor] | None:
    """oneDNN's ``x @ weight.T``, where it is known to be faster than MKL's: the processor has AVX-512 and is not
    Intel's. By the kind of processor and not by a clock, so that a resumed run gets the numbers it would have got."""
    cpu = Path("/proc/cpuinfo")
    if torch.backends.cpu.get_cpu_capability() != "AVX512" or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return None
    with suppress(
        OSError, AttributeError, RuntimeError, TypeError
    ):  # what another torch does not have, or has otherwise
        linear: Callable[..., Tensor] = torch.ops.mkldnn._linear_pointwise  # what torch.compile uses
        small = torch.arange(6.0).view(2, 3)
        right = torch.equal(linear(small, small, None, "none", [], ""), small @ small.t())
        return linear if right and "GenuineIntel" not in cpu.read_text() else None
    return None


def product(x: Tensor, weight: Tensor) -> Tensor:
    """``x @ weight.T``, for any number of leading dimensions."""
    if x.dtype is torch.float32 and x.is_cpu and (linear := _onednn()) is not None and x.numel():
        return linear(x, weight, None, "none", [], "")
    return F.linear(x, weight)


def _product_for_weight(given: Tensor, x: Tensor) -> Tensor:
    """``given.T @ x`` over all leading dimensions. oneDNN copies its first operand: the smaller one."""
    given, x = given.flatten(0, -2).t(), x.flatten(0, -2).t()
    return product(x, given).t() if len(given) > len(x) else product(given, x)


class Product(torch.autograd.Function):
    """(x, weight) -> x @ weight.T"""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return product(x, weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, given: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        return product(given, weight.t()), _product_for_weight(given, x)


class ScoredLoss(torch.autograd.Function):
    """(x, table, targets, keep) -> logits ``x @ table.T``, empty unless they are to be kept, and their mean
    cross-entropy.

    The gradients of the loss are made beside it, at most `ROWS` rows at a time: torch's own loss makes three more
    tensors of the logits' size, by far the largest of a small model, and passes through each.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, table: Tensor, targets: Tensor, keep: bool) -> tuple[Tensor, Tensor]:
        count, share = len(targets), 1 / len(targets)
        kept, for_x, for_table = list[Tensor](), torch.empty_like(x), torch.zeros_like(table)
        loss = x.new_zeros(())
        for first in range(0, count, ROWS):
            rows = slice(first, min(count, first + ROWS))
            target, scores = targets[rows, None], product(x[rows], table)
            kept += [scores] * keep
            wrong = torch.softmax(scores, -1, out=None if keep else scores)  # chances, then their errors
            loss -= wrong.gather(1, target).clamp_(min=LEAST_CHANCE).log_().sum()
            if any(ctx.needs_input_grad):
                wrong.scatter_add_(1, target, wrong.new_full(target.shape, -1.0))
                for_x[rows] = product(wrong, table.t())
                for_table += _product_for_weight(wrong, x[rows])
        ctx.save_for_backward(x, table, for_x.mul_(share), for_table.mul_(share))
        ctx.set_materialize_grads(False)
        logits = kept[0] if len(kept) == 1 else torch.cat(kept) if kept else x.new_empty(0, len(table))
        return logits, loss.mul_(share)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, for_logits: Tensor | None, for_loss: Tensor | None) -> tuple[Tensor, Tensor, None, None]:
        x, table, for_x, for_table = ctx.saved_tensors
        scale = 0.0 if for_loss is None else for_loss
        for_x, for_table = for_x * scale, for_table * scale
        if for_logits is not None:
            for_x += product(for_logits, table.t())
            for_table += _product_for_weight(for_logits, x)
        return for_x, for_table, None, None


class NormedProduct(torch.autograd.Function):
    """(x, gain, weight) -> x over the root of its mean square, times gain, times the weights.

    The gain goes into the weights, which are smaller than x, and so does its gradient.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, gain: Tensor, weight: Tensor) -> Tensor:
        unit, shrink = _shrunk(x)
        scaled = weight * gain
        ctx.save_for_backward(unit, shrink, gain, weight, scaled)
        return product(unit, scaled)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, given: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        unit, shrink, gain, weight, scaled = ctx.saved_tensors
        for_scaled = _product_for_weight(given, unit)
        for_x = _through_shrunk(product(given, scaled.t()), unit, shrink)
        return for_x, (for_scaled * weight).sum(0), for_scaled * gain


class NormedHeads(torch.autograd.Function):
    """(x, gain, weight, turns) -> the same product, as queries and keys turned by their positions' angles, and values.

    Each comes as (rows, heads, length, width of a head). Both halves of a head are put together pair by pair, which
    changes no product of a query and a key: then a turn is one product of complex numbers, in place.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, gain: Tensor, weight: Tensor, turns: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        rows, length, width = x.shape
        unit, shrink = _shrunk(x)
        pairs = turns.shape[1]
        scaled = _paired(weight * gain, pairs)
        qkv = product(unit, scaled)
        turns = _complex(turns.flatten(1)).repeat(1, width // (2 * pairs))
        for part in qkv.chunk(3, -1)[:2]:
            _complex(part).mul_(turns)
        ctx.save_for_backward(unit, shrink, gain, weight, scaled, turns)
        q, k, v = qkv.view(rows, length, 3, -1, 2 * pairs).permute(2, 0, 3, 1, 4)
        return q, k, v

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *given: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        unit, shrink, gain, weight, scaled, turns = ctx.saved_tensors
        for_q, for_k, for_v = (part.transpose(1, 2).flatten(2).contiguous() for part in given)
        found = unit.new_empty(*unit.shape[:2], len(scaled))
        into_q, into_k, into_v = found.chunk(3, -1)
        torch.mul(_complex(for_q), turns.conj_physical(), out=_complex(into_q))
        torch.mul(_complex(for_k), turns.conj_physical(), out=_complex(into_k))
        into_v.copy_(for_v)
        for_scaled = _apart(_product_for_weight(found, unit), given[0].shape[3] // 2)
        for_x = _through_shrunk(product(found, scaled.t()), unit, shrink)
        return for_x, (for_scaled * weight).sum(0), for_scaled * gain, None


def _shrunk(x: Tensor) -> tuple[Tensor, Tensor]:
    """x over the root of its mean square, and one over that root."""
    shrink = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_().div_(x.shape[-1]).add_(EPSILON).rsqrt_()
    return x * shrink, shrink


def _through_shrunk(given: Tensor, unit: Tensor, shrink: Tensor) -> Tensor:
    along = (given * unit).mean(-1, keepdim=True)
    return given.addcmul_(unit, along, value=-1.0).mul_(shrink)


def _paired(weight: Tensor, pairs: int) -> Tensor:
    """Rows of queries and keys, each head's first half and second half, in turn from one and the other."""
    width = weight.shape[1]
    turned = weight[: 2 * width].view(-1, 2, pairs, width).transpose(1, 2).reshape(2 * width, width)
    return torch.cat((turned, weight[2 * width :]))


def _apart(weight: Tensor, pairs: int) -> Tensor:
    """As it was before `_paired`."""
    width = weight.shape[1]
    turned = weight[: 2 * width].view(-1, pairs, 2, width).transpose(1, 2).reshape(2 * width, width)
    return torch.cat((turned, weight[2 * width :]))


def _complex(x: Tensor) -> Tensor:
    """The same memory as complex numbers, half as many."""
    return torch.view_as_complex(x.view(*x.shape[:-1], -1, 2))


# torch ships `apply` without types.
multiplied = cast(Callable[[Tensor, Tensor], Tensor], Product.apply)
scored_loss = cast(Callable[[Tensor, Tensor, Tensor, bool], tuple[Tensor, Tensor]], ScoredLoss.apply)
normed_product = cast(Callable[[Tensor, Tensor, Tensor], Tensor], NormedProduct.apply)
normed_heads = cast(Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]], NormedHeads.apply)
