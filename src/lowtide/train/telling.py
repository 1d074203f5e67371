"""What a run says and writes while it works: lines, a bar, JSON, ``metrics.jsonl``, TensorBoard's files.

The loop tells one `RunProgress` what happened, as plain values, and never prints. For people everything but the last
report goes to stderr; with ``--json`` stdout holds one JSON object per line and nothing else. ``metrics.jsonl`` is a
by-product: when the disk is full the run says so once and goes on without it. rich and TensorBoard are imported when
they are used.
"""

from __future__ import annotations

import importlib.util
import json
import math
import sys
import textwrap
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, TextIO

from lowtide.prepare import Control
from lowtide.train.checkpoints import reason
from lowtide.train.gauge import BudgetVerdict, MemoryNow
from lowtide.train.ledger import WholeLines
from lowtide.units import MIB, format_duration, format_size

METRICS = "metrics.jsonl"
WIDTH = 80  # columns of a terminal nobody has made wider; only the last line, for programs, is longer


@dataclass(frozen=True)
class Facts:
    """What is known before the first step."""

    event: ClassVar[str] = "start"
    parameters: int
    compute: str
    world: int
    data: str
    train_tokens: int
    val_tokens: int
    vocab_size: int
    unigram: float
    rows_per_step: int
    block_size: int
    budget: int
    reader_holds: int
    strategy: str
    first_step: int
    max_iters: int
    seconds: float = 0.0  # of the runs that this one resumes

    def lines(self) -> list[str]:
        """The run in four facts."""
        ranks = "1 rank" if self.world == 1 else f"{self.world} ranks"
        first = f", from step {self.first_step:,}" if self.first_step else ""
        found = [
            f"model  {self.parameters:,} parameters on {self.compute}, {ranks}; {self.max_iters:,} steps of "
            f"{self.rows_per_step} x {self.block_size} tokens{first}",
            f"data   {self.data}: {self.train_tokens:,} train and {self.val_tokens:,} val tokens "
            f"of {self.vocab_size:,} ids",
            f"reader strategy {self.strategy}, holds up to {format_size(self.reader_holds)} of its budget of "
            f"{format_size(self.budget)}",
            f"goal   val loss below {self.unigram:.3f}, that of a model that knows only how often each token occurs",
        ]
        return [line for fact in found for line in wrapped(fact, 7)]


@dataclass(frozen=True)
class Stepped:
    """One progress line. ``loss`` is the mean over the steps since the line before."""

    event: ClassVar[str] = "step"
    step: int
    loss: float
    learning_rate: float
    tokens_per_s: float
    data_wait: float  # share of the training time spent waiting for batches
    seconds_left: float
    reading: MemoryNow
    shares: dict[str, float] | None = None  # of the rows, by corpus, in a mixture
    epochs: dict[str, float] | None = None  # that each corpus of a mixture has been through
    seconds: float = 0.0  # since the first run of the directory began, those between runs left out
    loader: dict[str, float | None] | None = None  # waits for batches, where their time went, and the cold share

    def pace(self) -> str:
        left, wait = clock(self.seconds_left), 100 * self.data_wait
        return f"loss {self.loss:.4f}  {self.tokens_per_s:,.0f} tokens/s  wait {wait:.2f} %  left {left}"

    def memory(self) -> str:
        held = self.reading
        kinds = ("anon", "mapped", "kept", "cache")
        return "  ".join(f"{kind} {getattr(held, kind) / MIB:.0f}" for kind in kinds) + " MiB"


@dataclass(frozen=True)
class Evaluated:
    """One val loss."""

    event: ClassVar[str] = "eval"
    step: int
    val_loss: float
    seconds: float = 0.0


@dataclass(frozen=True)
class RunOutcome:
    """How a run ended."""

    event: ClassVar[str] = "end"
    steps: int
    val_loss: float
    unigram: float
    tokens_per_s: float
    data_wait: float
    seconds: float
    verdict: BudgetVerdict
    sample: str
    picture: str
    stopped_by: int  # 0, or the signal's number
    control: Control | None = None  # what a pass through a kept np.memmap held

    @property
    def last_line(self) -> str:
        peak, settled = self.verdict.peak, self.verdict.settled
        anon, mapped = max(0, peak.anon - settled.anon) / MIB, max(0, peak.mapped - settled.mapped) / MIB
        return (
            f"lowtide train: steps={self.steps} val_loss={self.val_loss:.4f} tokens_per_s={self.tokens_per_s:.0f} "
            f"anon_mib={anon:.1f} mapped_mib={mapped:.1f} cache_mib={self.verdict.last.cache / MIB:.1f} "
            f"budget={self.verdict.word}"
        )

    def lines(self) -> list[str]:
        """Everything worth reading at the end; the last line's form never changes."""
        verdict, lines = self.verdict, []
        if self.sample:
            shown = [part for line in self.sample.splitlines() for part in textwrap.wrap(line, WIDTH - 4) or [""]]
            lines += ["", "sample", *(f"  | {part}" for part in shown), ""]
        lines += [f"memory   {'after warm-up':>13} {'highest':>10} {'growth':>10}"]
        for kind in ("anon", "mapped"):
            before, peak = getattr(verdict.settled, kind) / MIB, getattr(verdict.peak, kind) / MIB
            lines.append(f"  {kind:<6} {before:>9.1f} MiB {peak:>6.1f} MiB {peak - before:>+6.1f} MiB")
        grown = max(0, verdict.peak.held - verdict.settled.held)
        told = [
            f"  anon + mapped grew {format_size(grown)} of the {format_size(verdict.budget)} budget: {verdict.word}",
            f"  kept   {verdict.settled.kept / MIB:.1f} MiB of heap that torch had freed, kept for its next step",
            f"  cache  {verdict.last.cache / MIB:.1f} MiB of the corpus in the page cache; the kernel can take it back",
        ]
        if self.control is not None:
            times = self.control.corpus_bytes / max(1, verdict.budget)
            told += [
                f"control  one pass over the same {format_size(self.control.corpus_bytes)} through a kept np.memmap, "
                "in a process of its own:",
                f"  mapped grew {format_size(self.control.mapped)}; the corpus is {times:.1f} times this run's budget",
            ]
        told += [
            f"val loss {self.val_loss:.4f}; {self.unigram:.4f} is the loss of a model that knows only token counts",
            f"time     {format_duration(self.seconds)} in all; {100 * self.data_wait:.2f} % of training was waiting "
            "for data",
        ]
        told += [f"picture  {self.picture}"] if self.picture else []
        return [*lines, *(line for fact in told for line in wrapped(fact, 9)), self.last_line]


def wrapped(text: str, indent: int) -> list[str]:
    """Lines of at most `WIDTH`; what cannot be broken, a path for one, stays whole."""
    how = {"break_long_words": False, "break_on_hyphens": False, "drop_whitespace": True}
    begins = text[: len(text) - len(text.lstrip())]
    return textwrap.wrap(text.lstrip(), WIDTH, initial_indent=begins, subsequent_indent=" " * indent, **how)  # type: ignore[arg-type]


RunEvent = Facts | Stepped | Evaluated | RunOutcome


class RunProgress:
    """What a run tells: events, and notes in words; ``close`` comes last, also after an error. This one tells nobody:
    it is for every rank but the first, and the others are made from it."""

    def tell(self, event: RunEvent) -> None: ...
    def note(self, text: str) -> None: ...
    def close(self) -> None: ...


class JsonLines(RunProgress):
    """One object per line on stdout."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = sys.stdout if out is None else out

    def tell(self, event: RunEvent) -> None:
        figures = asdict(event)
        if isinstance(event, RunOutcome):
            figures["verdict"]["word"] = event.verdict.word
            figures["last_line"] = event.last_line
            if event.control is not None:
                del figures["control"]["trace"]  # for the picture
        self._write({"event": event.event, **figures})

    def note(self, text: str) -> None:
        self._write({"event": "note", "text": text})

    def _write(self, values: dict[str, Any]) -> None:
        self._out.write(_json_line(values))  # at once: notes may come from another thread
        self._out.flush()


def _json_line(values: dict[str, Any]) -> str:
    """NaN and infinity are no JSON."""
    safe = {name: None if isinstance(v, float) and not math.isfinite(v) else v for name, v in values.items()}
    return json.dumps(safe) + "\n"


class Lines(RunProgress):
    """Plain lines on stderr; the report on stdout."""

    def __init__(self, err: TextIO | None = None, out: TextIO | None = None) -> None:
        self._err = sys.stderr if err is None else err
        self._out = sys.stdout if out is None else out
        self._max_iters = 0
        self._memory = ""

    def tell(self, event: RunEvent) -> None:
        match event:
            case Facts():
                self._max_iters = event.max_iters
                self.note("\n".join(event.lines()))
            case Stepped():
                self._memory = f"  {event.memory()}"
                self._step(event.step, event.pace())
            case Evaluated():
                self._step(event.step, f"val loss {event.val_loss:.4f}{self._memory}")
            case RunOutcome():
                print("\n".join(event.lines()), file=self._out, flush=True)

    def _step(self, step: int, text: str) -> None:
        self.note(f"step {step:>{len(str(self._max_iters))}}/{self._max_iters}  {text}")

    def note(self, text: str) -> None:
        print(text, file=self._err, flush=True)


class Live(RunProgress):
    """For a person at a terminal: two short lines, redrawn (80 columns are enough); the rest is said above them."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        self._console = Console(stderr=True, highlight=False)
        figures = TextColumn("{task.completed}/{task.total}  {task.fields[figures]}", markup=False)
        self._bar = Progress(BarColumn(bar_width=20), figures, console=self._console, transient=True)
        self._task = self._bar.add_task("train", total=None, figures="")

    def tell(self, event: RunEvent) -> None:
        match event:
            case Facts():
                self.note("\n".join(event.lines()))
                self._bar.update(self._task, total=event.max_iters, completed=event.first_step)
                self._bar.start()
            case Stepped():
                self._bar.update(self._task, completed=event.step, figures=f"{event.pace()}\n{event.memory()}")
            case Evaluated():
                self.note(f"step {event.step:>6}  val loss {event.val_loss:.4f}")
            case RunOutcome():
                self.close()
                Lines().tell(event)

    def note(self, text: str) -> None:
        self._console.print(text, markup=False, soft_wrap=True)

    def close(self) -> None:
        self._bar.stop()


class MetricsFile(RunProgress):
    """``metrics.jsonl``: what a plot needs, and what finds a spike. Every run in the directory appends to it; a
    ``start`` line says at which step a run began: lines above it about that step and later ones no longer count."""

    def __init__(self, directory: Path, say: Callable[[str], None]) -> None:
        self._path = directory / METRICS
        self._say = say
        self._lines: WholeLines | None = None

    def tell(self, event: RunEvent) -> None:
        match event:
            case Facts():
                try:
                    self._lines = WholeLines(self._path)
                except OSError as problem:
                    self._say(f"no metrics: {self._path}: {reason(problem)}")
                values: dict[str, Any] = {"step": event.first_step, "max_iters": event.max_iters}
                values |= {"parameters": event.parameters, "seconds": event.seconds}
            case Stepped():
                values = asdict(event)
                values |= values.pop("reading")
                values |= values.pop("loader") or {}
                unknown = [name for name in ("shares", "epochs") if values[name] is None]
                for name in ("seconds_left", *unknown):
                    del values[name]
            case Evaluated():
                values = asdict(event)
            case RunOutcome():
                values = {"step": event.steps, "val_loss": event.val_loss, "budget": event.verdict.word}
                values |= {} if event.control is None else {"control_mapped": event.control.mapped}
        self._write({"event": event.event, **values})

    def close(self) -> None:
        if self._lines is not None:
            self._lines.close()
            self._lines = None

    def _write(self, values: dict[str, Any]) -> None:
        if self._lines is None:
            return
        try:
            self._lines.append(_json_line(values).encode())
        except OSError as problem:
            self.close()
            self._say(f"no more metrics, training continues: {self._path}: {reason(problem)}")


class Board(RunProgress):
    """The same figures for TensorBoard, by torch's own event writer and a thread of its own."""

    def __init__(self, directory: Path) -> None:
        if importlib.util.find_spec("tensorboard") is None:
            raise ValueError(
                "--tensorboard: expected the package tensorboard, got none. Install it with: pip install tensorboard"
            )
        self._directory = directory / "tensorboard"
        self._writer: Any = None  # torch's writer has no types

    def tell(self, event: RunEvent) -> None:
        figures: dict[str, float] = {}
        if isinstance(event, Facts):
            from torch.utils.tensorboard import SummaryWriter

            purge = event.first_step or None  # a resumed run hides what it overtakes
            self._writer = SummaryWriter(str(self._directory), purge_step=purge)
        elif isinstance(event, Evaluated):
            figures = {"loss/val": event.val_loss}
        elif isinstance(event, Stepped):
            figures = {"loss/train": event.loss, "learning_rate": event.learning_rate}
            figures |= {"tokens_per_s": event.tokens_per_s, "data_wait": event.data_wait}
            figures |= {f"memory_mib/{kind}": held / MIB for kind, held in asdict(event.reading).items()}
        for name, value in figures.items():
            self._writer.add_scalar(name, value, event.step)  # type: ignore[union-attr]  # those with figures have it

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None


class Told(RunProgress):
    """Who watches, and those that write into the out directory."""

    def __init__(self, first: RunProgress, directory: Path, *, tensorboard: bool) -> None:
        self._first = first
        self._files: list[RunProgress] = [MetricsFile(directory, first.note)]
        self._files += [Board(directory)] if tensorboard else []

    def tell(self, event: RunEvent) -> None:
        for one in (self._first, *self._files):
            one.tell(event)

    def note(self, text: str) -> None:
        self._first.note(text)

    def close(self) -> None:
        """The files; who watches is closed by whoever made it."""
        for one in self._files:
            one.close()


def clock(seconds: float) -> str:
    whole = max(0, round(seconds))
    hours, minutes = whole // 3600, whole // 60 % 60
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"
