"""A compact GPT, and the device and number format it runs in: read it top to bottom and you know the whole model.

Pre-norm residual blocks with rotary positions, so that no parameter depends on the window's length. Attention is
torch's own fused causal kernel, or one with a mask for documents that must not see each other. It has ``12 * n_layer *
n_embd**2 + vocab_size * n_embd`` parameters and keeps no cache of keys: each sampled token runs the last window again.
Some pieces have their gradients written out (``gradients.py``); the torch code they replace is given beside each call.
``auto`` is float32 on a CPU, on a GPU bfloat16 or else float16 with a loss scaler; it has not been run on a GPU.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  # the name every torch reader knows

from lowtide.train.gradients import EPSILON, by_hand, multiplied, normed_heads, normed_product, scored_loss

ROTARY_BASE = 10_000.0  # the wavelength ratio of the slowest to the fastest pair, as in the paper that introduced it
INIT_STD = 0.02  # GPT-2's
_NUMBER_FORMATS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
IGNORED = -100  # a target that does not count, as torch spells it


@dataclass(frozen=True)
class Shape:
    """What fixes the parameters; two checkpoints with equal shapes are interchangeable."""

    vocab_size: int
    block_size: int
    n_layer: int
    n_head: int
    n_embd: int
    dropout: float = 0.0


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
        mixed = mixed.transpose(1, 2).reshape(rows, length, width)
        found = multiplied(mixed, self.out.weight) if by_hand(mixed) else self.out(mixed)
        return F.dropout(found, self.dropout, self.training)


class Mlp(nn.Module):
    """The position-wise half of a block: four times wider inside."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.dropout = shape.dropout
        self.up = nn.Linear(shape.n_embd, 4 * shape.n_embd, bias=False)
        self.down = nn.Linear(4 * shape.n_embd, shape.n_embd, bias=False)

    def forward(self, x: Tensor, norm: nn.RMSNorm) -> Tensor:
        if by_hand(x):
            found = multiplied(F.gelu(normed_product(x, norm.weight, self.up.weight)), self.down.weight)
        else:
            found = self.down(F.gelu(self.up(norm(x))))
        return F.dropout(found, self.dropout, self.training)


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
