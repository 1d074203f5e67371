"""A compact GPT, and the device and number format it runs in: read it top to bottom and you know the whole model.

Pre-norm residual blocks with rotary positions, so that no parameter depends on the window's length. Attention is
torch's own fused causal kernel, or one with a mask for documents that must not see each other. It has ``12 * n_layer *
n_embd**2 + vocab_size * n_embd`` parameters and keeps no cache of keys: each sampled token runs the last window again.
Three pieces have their gradients written out, in fewer passes over memory than torch's own; they are below the model,
and the torch code they replace is given beside each call. ``auto`` is float32 on a CPU, on a GPU bfloat16 or else
float16 with a loss scaler; it has not been run on a GPU.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F  # noqa: N812  # the name every torch reader knows

ROTARY_BASE = 10_000.0  # the wavelength ratio of the slowest to the fastest pair, as in the paper that introduced it
INIT_STD = 0.02  # GPT-2's
_NUMBER_FORMATS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
IGNORED = -100  # a target that does not count, as torch spells it
EPSILON = torch.finfo(torch.float32).eps  # torch's own of an RMS norm
ROWS = 2048  # scored in one go: 32 MiB of logits with 4,096 ids. Fewer, to stay in the CPU's cache, were no faster
LEAST_CHANCE = torch.finfo(torch.float32).tiny  # of a target, so that its loss is finite: at most 87 nats


@dataclass(frozen=True)
class Shape:
    """What fixes the parameters; two checkpoints with equal shapes are interchangeable."""

    vocab_size: int
    block_size: int
    n_layer: int
    n_head: int
    n_embd: int
    dropout: float = 0.0


def by_hand(x: Tensor) -> bool:
    """Whether the pieces whose gradients are written out are for this tensor; torch.compile joins passes itself."""
    return (
        x.dtype is torch.float32 and not torch.is_autocast_enabled(x.device.type) and not torch.compiler.is_compiling()
    )


class Attention(nn.Module):
    """Causal self-attention over all heads at once."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.n_head
        self.dropout = shape.dropout
        self.qkv = nn.Linear(shape.n_embd, 3 * shape.n_embd, bias=False)
        self.out = nn.Linear(shape.n_embd, shape.n_embd, bias=False)

    def forward(self, x: Tensor, norm: nn.RMSNorm, turns: Tensor, mask: Tensor | None = None) -> Tensor:
        rows, length, width = x.shape
        if by_hand(x):
            q, k, v = normed_heads(x, norm.weight, self.qkv.weight, turns)
        else:
            qkv = self.qkv(norm(x)).view(rows, length, 3, self.heads, width // self.heads)
            q, k, v = qkv.permute(2, 0, 3, 1, 4)  # each (rows, heads, length, width of a head)
            q, k = rotate(q, turns), rotate(k, turns)
        mixed = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=mask is None, dropout_p=self.dropout if self.training else 0.0
        )
        return F.dropout(self.out(mixed.transpose(1, 2).reshape(rows, length, width)), self.dropout, self.training)


class Mlp(nn.Module):
    """The position-wise half of a block: four times wider inside."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.dropout = shape.dropout
        self.up = nn.Linear(shape.n_embd, 4 * shape.n_embd, bias=False)
        self.down = nn.Linear(4 * shape.n_embd, shape.n_embd, bias=False)

    def forward(self, x: Tensor, norm: nn.RMSNorm) -> Tensor:
        wide = normed_product(x, norm.weight, self.up.weight) if by_hand(x) else self.up(norm(x))
        return F.dropout(self.down(F.gelu(wide)), self.dropout, self.training)


class Block(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.norm_attention = nn.RMSNorm(shape.n_embd, EPSILON)
        self.attention = Attention(shape)
        self.norm_mlp = nn.RMSNorm(shape.n_embd, EPSILON)
        self.mlp = Mlp(shape)

    def forward(self, x: Tensor, turns: Tensor, mask: Tensor | None = None) -> Tensor:
        mixed: Tensor = x + self.attention(x, self.norm_attention, turns, mask)
        return mixed.add(self.mlp(mixed, self.norm_mlp))


class GPT(nn.Module):
    """Tokens in, next-token logits (and, with targets, the mean loss) out."""

    turns: Tensor

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embed = nn.Embedding(shape.vocab_size, shape.n_embd)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.n_layer))
        self.norm = nn.RMSNorm(shape.n_embd, EPSILON)
        self.head = nn.Linear(shape.n_embd, shape.vocab_size, bias=False)
        self.head.weight = self.embed.weight  # tied: one table reads tokens and scores them
        self.register_buffer("turns", rotary_table(shape.block_size, shape.n_embd // shape.n_head), persistent=False)
        self._initialise()

    def _initialise(self) -> None:
        # The layers that write into the residual stream start smaller, so that its variance does not grow with depth.
        residual_std = INIT_STD / math.sqrt(2 * self.shape.n_layer)
        for name, parameter in self.named_parameters():
            if parameter.dim() < 2:
                continue  # the norms' gains start at one
            writes_residual = name.endswith(("attention.out.weight", "mlp.down.weight"))
            nn.init.normal_(parameter, std=residual_std if writes_residual else INIT_STD)

    def forward(
        self,
        tokens: Tensor,
        targets: Tensor | None = None,
        documents: Tensor | None = None,
        counted: Tensor | None = None,
        *,
        keep_logits: bool = True,
    ) -> tuple[Tensor, Tensor | None]:
        """``documents`` numbers each token's document: attention stays inside it. ``counted``: targets in the loss.
        Without ``keep_logits`` they may come empty where there are targets: who wants the loss alone saves a pass."""
        length = tokens.shape[1]
        mask = None if documents is None else inside_documents(documents)
        turns = self.turns[:length]
        x = F.dropout(self.embed(tokens), self.shape.dropout, self.training)
        for block in self.blocks:
            x = block(x, turns, mask)
        x = self.norm(x)
        if targets is not None and counted is None and by_hand(x):
            scores, loss = scored_loss(x.flatten(0, 1), self.head.weight, targets.flatten(), keep_logits)
            return scores.view(*tokens.shape, -1) if keep_logits else scores, loss
        logits: Tensor = self.head(x)
        if targets is None:
            return logits, None
        if counted is None:
            return logits, F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())
        targets = targets.masked_fill(~counted, IGNORED).flatten()
        total = F.cross_entropy(logits.float().flatten(0, 1), targets, ignore_index=IGNORED, reduction="sum")
        return logits, total / counted.sum().clamp(min=1)

    def parameters_count(self) -> int:
        return sum(parameter.numel() for parameter in self.parameters())

    @torch.no_grad()
    def sampled(
        self, ids: list[int], count: int, *, seed: int, temperature: float = 0.8, top_k: int | None = 50
    ) -> Iterator[int]:
        """``count`` ids that follow ``ids``, one at a time; the same seed gives the same ones. The caller chooses train
        or eval mode."""
        device = self.turns.device
        generator = torch.Generator(device).manual_seed(seed)
        tokens = torch.tensor([ids], device=device)
        for _ in range(count):
            tokens = tokens[:, -self.shape.block_size :]
            logits = self(tokens)[0][:, -1].float() / max(temperature, 1e-6)
            if top_k is not None and top_k < logits.shape[-1]:
                least = logits.topk(top_k).values[:, -1:]
                logits = logits.masked_fill(logits < least, -math.inf)
            chosen = torch.multinomial(logits.softmax(-1), 1, generator=generator)
            tokens = torch.cat((tokens, chosen), dim=1)
            yield int(chosen)


def inside_documents(documents: Tensor) -> Tensor:
    """(rows, 1, length, length): True where a token may look: back, and at its own document only. Rotary positions are
    relative, so they need not begin again with each document."""
    length = documents.shape[1]
    back = torch.ones(length, length, dtype=torch.bool, device=documents.device).tril()
    return (documents[:, None, :, None] == documents[:, None, None, :]) & back


def rotary_table(length: int, width: int) -> Tensor:
    """Cosine and sine of every position's angles: (length, width / 2, 2)."""
    frequencies = ROTARY_BASE ** (-torch.arange(0, width, 2).float() / width)
    angles = torch.outer(torch.arange(length).float(), frequencies)
    return torch.stack((angles.cos(), angles.sin()), -1)


def rotate(x: Tensor, turns: Tensor) -> Tensor:
    """Turn each pair (first half, second half) of a head by its position's angle; lengths are kept."""
    first, second = x.float().chunk(2, dim=-1)
    cos, sin = turns.unbind(-1)
    return torch.cat((first * cos - second * sin, first * sin + second * cos), dim=-1).to(x.dtype)


# Pieces with their gradients written out: forwards the plain formula, backwards what autograd would find. A CPU spent
# a fifth of a small model's time in just these.


class ScoredLoss(torch.autograd.Function):
    """(x, table, targets, keep) -> logits ``x @ table.T``, empty unless they are to be kept, and their mean
    cross-entropy.

    The gradients of the loss are made beside it, at most `ROWS` rows at a time: torch's own loss makes three more
    tensors of the logits' size, by far the largest of a small model, and passes through each.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, table: Tensor, targets: Tensor, keep: bool) -> tuple[Tensor, Tensor]:
        count, share = len(targets), 1 / len(targets)
        logits = x.new_empty(count if keep else 0, len(table))
        for_x, for_table = torch.empty_like(x), torch.zeros_like(table)
        chances = x.new_empty(min(ROWS, count), len(table))  # then their errors
        loss = x.new_zeros(())
        for first in range(0, count, ROWS):
            rows = slice(first, min(count, first + ROWS))
            target, wrong = targets[rows, None], chances[: rows.stop - first]
            scores = logits[rows] if keep else wrong
            torch.mm(x[rows], table.t(), out=scores)
            torch.softmax(scores, -1, out=wrong)
            loss -= wrong.gather(1, target).clamp_(min=LEAST_CHANCE).log_().sum()
            if any(ctx.needs_input_grad):
                wrong.scatter_add_(1, target, wrong.new_full(target.shape, -1.0))
                torch.mm(wrong, table, out=for_x[rows])
                for_table.addmm_(wrong.t(), x[rows], alpha=share)
        ctx.save_for_backward(x, table, for_x.mul_(share), for_table)
        ctx.set_materialize_grads(False)
        return logits, loss.mul_(share)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, for_logits: Tensor | None, for_loss: Tensor | None) -> tuple[Tensor, Tensor, None, None]:
        x, table, for_x, for_table = ctx.saved_tensors
        scale = 0.0 if for_loss is None else for_loss
        for_x, for_table = for_x * scale, for_table * scale
        if for_logits is not None:
            for_x.addmm_(for_logits, table)
            for_table.addmm_(for_logits.t(), x)
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
        return F.linear(unit, scaled)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, given: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        unit, shrink, gain, weight, scaled = ctx.saved_tensors
        for_scaled = given.flatten(0, -2).t() @ unit.flatten(0, -2)
        return _through_shrunk(given @ scaled, unit, shrink), (for_scaled * weight).sum(0), for_scaled * gain


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
        qkv = F.linear(unit, scaled)
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
        for_scaled = _apart(found.flatten(0, 1).t() @ unit.flatten(0, 1), given[0].shape[3] // 2)
        for_x = _through_shrunk(found @ scaled, unit, shrink)
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


# Where it runs


@dataclass(frozen=True)
class Compute:
    """One device and the number format of its forward passes."""

    device: torch.device
    dtype: torch.dtype

    def autocast(self) -> AbstractContextManager[object]:
        if self.dtype is torch.float32:
            return nullcontext()
        return torch.autocast(self.device.type, self.dtype)

    def scaler(self) -> torch.amp.GradScaler:
        """Float16 loses small gradients unless the loss is scaled up; the other formats pass through unchanged."""
        return torch.amp.GradScaler(self.device.type, enabled=self.dtype is torch.float16)

    def __str__(self) -> str:
        return f"{self.device}, {str(self.dtype).removeprefix('torch.')}"


def choose_compute(device: str, dtype: str, local_rank: int = 0) -> Compute:
    """The device and format asked for; ValueError when this machine lacks them."""
    if not re.fullmatch(r"cpu|cuda(:\d+)?", device):
        raise ValueError(f"--device {device}: expected cpu, cuda or cuda:N, got {device!r}. Use --device cpu.")
    place = torch.device(device)
    if place.type == "cuda":
        place = _cuda(device, place, local_rank)
    if dtype != "auto":
        return Compute(place, _NUMBER_FORMATS[dtype])
    if place.type == "cpu":
        return Compute(place, torch.float32)
    return Compute(place, torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16)


def _cuda(asked: str, place: torch.device, local_rank: int) -> torch.device:
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if count == 0:
        raise ValueError(f"--device {asked}: expected a CUDA device, got none. Use --device cpu.")
    index = local_rank if place.index is None else place.index
    if index >= count:
        raise ValueError(
            f"--device {asked}: expected a device below cuda:{count}, got cuda:{index}. Use --device cuda:0."
        )
    chosen = torch.device("cuda", index)
    torch.cuda.set_device(chosen)
    return chosen


# torch ships `apply` without types.
scored_loss = cast(Callable[[Tensor, Tensor, Tensor, bool], tuple[Tensor, Tensor]], ScoredLoss.apply)
normed_product = cast(Callable[[Tensor, Tensor, Tensor], Tensor], NormedProduct.apply)
normed_heads = cast(Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]], NormedHeads.apply)
