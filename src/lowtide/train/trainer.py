"""One optimiser step, one val loss, one checkpoint: all that touches the model.

Everything a step does follows from (settings, weights, step number): the rows from the feed's cursor, the learning
rate from the step, what dropout draws from (seed, step, rank). So no generator's state needs saving, and a resumed run
repeats the one that was not interrupted, on a CPU to the bit. When to evaluate, save and stop is in run.py.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from lowtide.errors import StateError
from lowtide.torch import tensors
from lowtide.train import checkpoints, ledger
from lowtide.train.data import RunData, TrainBatch, as_batch, train_feed, val_feed
from lowtide.train.model import GPT, Compute
from lowtide.train.ranks import World
from lowtide.train.settings import MODEL_FIELDS, Settings, kept_settings

SAMPLED_AT = 0.7  # temperature: after minutes of training, what is unlikely is mostly wrong


class AskedToStop(Exception):  # noqa: N818  # not an error: the way out of a step that may be left
    """Raised inside a step or an evaluation that is to be left half done."""


class Trainer:
    """The model, its optimiser and its feed, at some step."""

    def __init__(self, settings: Settings, compute: Compute, world: World, data: RunData) -> None:
        self.settings, self.compute, self.world, self.data = settings, compute, world, data
        self.step = 0
        self.rows_done = 0  # by all ranks; not step x rows_per_step when a resumed run changed its batch size
        self.passes, rows = passes_of(settings, world.world)
        torch.manual_seed(settings.seed)
        self.model = GPT(settings.shape(data.vocab_size)).to(compute.device)
        self.optimizer = build_optimizer(self.model, settings, compute.device)
        self.scaler = compute.scaler()
        self._forward = self._wrapped()
        self._rows = rows  # of one pass, over all ranks
        feed = train_feed(settings, data, rows, world.rank, world.world)
        self._val = val_feed(settings, data)
        self.plan = feed.plan()
        self._batches = tensors(feed, device=compute.device)
        self.ledger: ledger.Ledger | None = None
        self.asked_to_stop: Callable[[], int] = lambda: 0
        self.seconds_waiting = 0.0
        self._loss_sum = torch.zeros((), dtype=torch.float64, device=compute.device)
        self._loss_steps = 0

    def _wrapped(self) -> nn.Module:
        forward: nn.Module = self.model
        if self.settings.compile:
            forward = cast(nn.Module, torch.compile(forward))
        if self.world.world > 1:
            on_gpu = self.compute.device.type == "cuda"
            with self.world.listening():
                forward = DistributedDataParallel(
                    forward,
                    device_ids=[self.compute.device.index] if on_gpu else None,
                    gradient_as_bucket_view=True,  # summed where they are made
                )
        if self.world.world == 1 and not self.settings.compile:
            for block in self.model.blocks:
                block.register_forward_hook(self._look_between_blocks)
        return forward

    def _look_between_blocks(self, block: nn.Module, inputs: object, output: Tensor) -> None:  # noqa: ARG002
        """One pass of a large model takes minutes on a CPU: someone alone need not wait for its end."""
        self._leave_if_asked()
        if output.requires_grad:
            output.register_hook(lambda _: self._leave_if_asked())  # type: ignore[no-untyped-call]

    def _leave_if_asked(self) -> None:
        if self.asked_to_stop():
            raise AskedToStop

    def leave_ranks(self) -> None:
        """Let go of the other ranks; the model stays, for this rank alone."""
        self._forward = self.model

    def train_step(self) -> bool:
        """One step; False when asked to stop on the way, and then nothing has changed."""
        cursor, loss_sum = self._batches.state_dict(), self._loss_sum.clone()
        try:
            self._step()
        except AskedToStop:
            self.optimizer.zero_grad(set_to_none=True)
            self._batches.load_state_dict(cursor)
            self._loss_sum = loss_sum
            return False
        return True

    def _step(self) -> None:
        """Forward and backward over this rank's rows, then one AdamW step."""
        torch.manual_seed(step_seed(self.settings.seed, self.step, self.world.rank))
        rate = learning_rate(self.step, self.settings)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        sums = []
        with self.world.listening():
            for number in range(self.passes):
                if number and self.world.any(self.asked_to_stop()):
                    raise AskedToStop
                batch = self._next_batch()
                if self.ledger is not None:
                    sums.append(self._checksum(batch.x, number))
                self._backward(batch, is_last=number == self.passes - 1)
        self._update()
        self._loss_steps += 1
        if self.ledger is not None:
            everyone = self.world.gather(ledger.add_sums(sums))
            last = self.rows_done + self.settings.rows_per_step - 1
            self.ledger.stepped(self.step, self.rows_done, last, ledger.add_sums(everyone))
        self.rows_done += self.settings.rows_per_step
        self.step += 1

    def _next_batch(self) -> TrainBatch:
        started = time.perf_counter()
        batch = next(self._batches)
        self.seconds_waiting += time.perf_counter() - started
        return as_batch(batch, self.settings, lambda tensor: tensor)

    def _backward(self, batch: TrainBatch, *, is_last: bool) -> None:
        with self._quiet(is_last), self.compute.autocast():
            loss = cast(Tensor, self._forward(*batch, keep_logits=False)[1]) / self.passes
        with self._quiet(is_last):
            self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]  # as torch ships it
        self._loss_sum += loss.detach()

    def _quiet(self, is_last: bool) -> AbstractContextManager[object]:
        """Ranks average gradients once per step, in its last pass."""
        if isinstance(self._forward, DistributedDataParallel) and not is_last:
            return cast(AbstractContextManager[object], self._forward.no_sync())
        return nullcontext()

    def _update(self) -> None:
        if self.settings.grad_clip:
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.grad_clip)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)

    def mean_loss(self) -> float:
        """The mean train loss since this was last asked, over all ranks."""
        if not self._loss_steps:
            return math.nan
        loss_sum, steps = self.partial_loss()
        self._loss_sum.zero_()
        self._loss_steps = 0
        return loss_sum / steps

    def partial_loss(self) -> tuple[float, int]:
        """The losses not yet told, over all ranks; a checkpoint keeps them for the resumed run's first line."""
        loss_sum = self.world.total([float(self._loss_sum)])[0] / self.world.world
        if not math.isfinite(loss_sum):
            raise StateError(
                f"step {self.step}: expected a finite loss, got {loss_sum}. "
                "Start again from the last checkpoint with --resume and a lower --learning-rate."
            )
        return loss_sum, self._loss_steps

    def loader_figures(self) -> dict[str, float | None]:
        """Of this run so far: seconds of waits for batches, seconds by what they went into, the share of cold bytes."""
        found = self._batches.stats()
        waits = {"wait_p50": found.p50, "wait_p95": found.p95, "wait_p99": found.p99}
        split = {"loader_reading": found.reading, "loader_copying": found.copying, "loader_shipping": found.shipping}
        return {**waits, **split, "loader_cold": found.cold}

    @torch.no_grad()
    def val_loss(self) -> float | None:
        """The mean loss over ``eval_iters`` batches spread evenly over the val tokens, shared out over the ranks; None
        when asked to stop on the way."""
        self.model.eval()
        total, tokens, left = 0.0, 0, 0.0
        count = min(self.settings.eval_iters, len(self._val))
        try:
            for number in range(self.world.rank, count, self.world.world):
                self._leave_if_asked()
                found = self._val[number * len(self._val) // count]
                batch = as_batch(found, self.settings, lambda array: torch.from_numpy(array).to(self.compute.device))
                # The last window may be shorter than the others, and not every target counts.
                size = batch.x.numel() if batch.counted is None else int(batch.counted.sum())
                with self.compute.autocast():
                    total += float(self.model(*batch, keep_logits=False)[1]) * size if size else 0.0
                tokens += size
        except AskedToStop:
            left = 1.0
        self.model.train()
        loss, seen, stopped = self.world.total([total, float(tokens), left])
        return None if stopped else loss / seen

    def sample(self, count: int) -> list[int]:
        """Tokens the model writes: a document from its beginning, where the data says what stands between two; fewer
        when asked to stop on the way."""
        val = self.data.val
        between = val.bos if val.bos is not None else val.eot
        first = between if between is not None else 10 if self.data.is_bytes else int(val[0])
        made: list[int] = []
        self.model.eval()
        with suppress(AskedToStop):
            made.extend(self.model.sampled([first], count, seed=self.settings.seed, temperature=SAMPLED_AT))
        self.model.train()
        return made

    def _checksum(self, x: Tensor, number: int) -> int:
        first = self.rows_done + number * self._rows
        share = self._rows // self.world.world
        return ledger.checksum(x.cpu().numpy(), first + self.world.rank * share)

    def contents(self, past: checkpoints.Past) -> checkpoints.Contents:
        """What a checkpoint holds: this trainer, and what the run knows of itself."""
        return {
            "step": self.step,
            "rows": self.rows_done,
            "settings": kept_settings(self.settings),
            "run": past,
            "shape": self._shape(),
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
            "feed": self._batches.state_dict(),
        }

    def _shape(self) -> dict[str, int]:
        return {name: getattr(self.model.shape, name) for name in MODEL_FIELDS}

    def restore(self, path: Path, contents: checkpoints.Contents) -> None:
        """Take a checkpoint's place in the run; StateError for another model or corpus."""
        checkpoints.check_same(path, "model", contents["shape"], self._shape())
        try:
            self._batches.load_state_dict(contents["feed"])
        except StateError as problem:
            raise StateError(f"{path}: {problem}") from problem
        self.model.load_state_dict(contents["model"])
        self.optimizer.load_state_dict(contents["optimizer"])
        self.scaler.load_state_dict(contents["scaler"])
        self.step, self.rows_done = contents["step"], contents["rows"]
        loss_sum, self._loss_steps = contents["run"]["partial_loss"]
        self._loss_sum.fill_(loss_sum)


def passes_of(settings: Settings, world: int) -> tuple[int, int]:
    """Passes of one rank in a step and rows of one pass over all ranks; ValueError when they do not divide."""
    passes = math.ceil(settings.gradient_accumulation_steps / world)
    rows, left = divmod(settings.rows_per_step, passes)
    if left or rows % world:
        unit = passes * world // math.gcd(passes * world, settings.gradient_accumulation_steps)
        raise ValueError(
            f"--batch-size: expected rows of a step that {world} ranks can share over {passes} passes, got "
            f"{settings.batch_size} x {settings.gradient_accumulation_steps} = {settings.rows_per_step}. "
            f"Use --batch-size {math.ceil(settings.batch_size / unit) * unit}."
        )
    return passes, rows


def step_seed(seed: int, step: int, rank: int) -> int:
    """A seed of 63 bits that neighbouring steps, ranks and seeds do not share."""
    digest = hashlib.blake2b(f"{seed}/{step}/{rank}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def learning_rate(step: int, settings: Settings) -> float:
    """Linear warm-up, then half a cosine down to the lowest rate, then flat."""
    if step < settings.warmup_iters:
        return settings.learning_rate * (step + 1) / (settings.warmup_iters + 1)
    if step >= settings.decay_until:
        return settings.lowest_rate
    done = (step - settings.warmup_iters) / max(1, settings.decay_until - settings.warmup_iters)
    height = 0.5 * (1.0 + math.cos(math.pi * done))
    return settings.lowest_rate + height * (settings.learning_rate - settings.lowest_rate)


def decay_groups(model: nn.Module, weight_decay: float) -> list[dict[str, object]]:
    """Matrices decay; norm gains and other vectors do not (decay would pull a gain towards zero)."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return [
        {"params": [p for p in trained if p.dim() >= 2], "weight_decay": weight_decay},
        {"params": [p for p in trained if p.dim() < 2], "weight_decay": 0.0},
    ]


def build_optimizer(model: nn.Module, settings: Settings, device: torch.device) -> torch.optim.AdamW:
    """AdamW with the two groups, in torch's fused kernel: one pass over weights, gradients and both moments."""
    return torch.optim.AdamW(
        decay_groups(model, settings.weight_decay),
        lr=settings.learning_rate,
        betas=(settings.beta1, settings.beta2),
        fused=device.type in ("cpu", "cuda"),
    )
