"""What a run says and writes while it works: lines, a bar, JSON, ``metrics.jsonl``, TensorBoard's files, the picture.

The loop tells one `RunProgress` what happened, as plain values, and never prints; small classes turn that into text and
files. For people everything but the last report goes to stderr. With ``--json`` stdout holds one JSON object per line
and nothing else; the last one, ``"event": "end"``, has the final figures.

``metrics.jsonl`` is always written, appended to by every run in the directory. A ``start`` line says at which step a
run began: lines of that step and later ones that stand before it were overtaken. It is a by-product: when the disk is
full the run says so once and goes on without it.

rich, TensorBoard and matplotlib are imported when they are used; a picture costs about a second.
"""

from __future__ import annotations

import importlib.util
import json
import math
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

from lowtide.prepare import Control
from lowtide.train.checkpoints import reason
from lowtide.train.gauge import BudgetVerdict, MemoryNow
from lowtide.train.ledger import WholeLines
from lowtide.units import MIB, format_duration, format_size

METRICS = "metrics.jsonl"


@dataclass(frozen=True)
class Facts:
    """What is known before the first step."""

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


@dataclass(frozen=True)
class Stepped:
    """One progress line. ``loss`` is the mean over the steps since the line before."""

    step: int
    loss: float
    learning_rate: float
    tokens_per_s: float
    data_wait: float  # share of the training time spent waiting for batches
    seconds_left: float
    reading: MemoryNow
    shares: dict[str, float] | None = None  # of the rows, by corpus, in a mixture
    epochs: dict[str, float] | None = None  # that each corpus of a mixture has been through


@dataclass(frozen=True)
class RunOutcome:
    """How a run ended."""

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
        grown = (
            self.verdict.peak.anon - self.verdict.settled.anon,
            self.verdict.peak.mapped - self.verdict.settled.mapped,
        )
        anon, mapped = (max(0, bytes_) / MIB for bytes_ in grown)
        return (
            f"lowtide train: steps={self.steps} val_loss={self.val_loss:.4f} tokens_per_s={self.tokens_per_s:.0f} "
            f"anon_mib={anon:.1f} mapped_mib={mapped:.1f} cache_mib={self.verdict.last.cache / MIB:.1f} "
            f"budget={self.verdict.word}"
        )


class RunProgress:
    """The five things worth telling; ``close`` comes last, also after an error. This one tells nobody: it is for every
    rank but the first, and the others are made from it."""

    def started(self, facts: Facts) -> None: ...
    def stepped(self, now: Stepped) -> None: ...
    def evaluated(self, step: int, val_loss: float) -> None: ...
    def note(self, text: str) -> None: ...
    def ended(self, outcome: RunOutcome) -> None: ...
    def close(self) -> None: ...


class Several(RunProgress):
    """Tells each of several."""

    def __init__(self, *listeners: RunProgress) -> None:
        self._listeners = listeners

    def started(self, facts: Facts) -> None:
        for one in self._listeners:
            one.started(facts)

    def stepped(self, now: Stepped) -> None:
        for one in self._listeners:
            one.stepped(now)

    def evaluated(self, step: int, val_loss: float) -> None:
        for one in self._listeners:
            one.evaluated(step, val_loss)

    def note(self, text: str) -> None:
        for one in self._listeners:
            one.note(text)

    def ended(self, outcome: RunOutcome) -> None:
        for one in self._listeners:
            one.ended(outcome)

    def close(self) -> None:
        for one in self._listeners:
            one.close()


class JsonLines(RunProgress):
    """One object per line on stdout."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = sys.stdout if out is None else out

    def started(self, facts: Facts) -> None:
        self._write("start", asdict(facts))

    def stepped(self, now: Stepped) -> None:
        self._write("step", asdict(now))

    def evaluated(self, step: int, val_loss: float) -> None:
        self._write("eval", {"step": step, "val_loss": val_loss})

    def note(self, text: str) -> None:
        self._write("note", {"text": text})

    def ended(self, outcome: RunOutcome) -> None:
        figures = asdict(outcome)
        figures["verdict"]["word"] = outcome.verdict.word
        if outcome.control is not None:
            del figures["control"]["trace"]  # for the picture
        self._write("end", {**figures, "last_line": outcome.last_line})

    def _write(self, event: str, values: dict[str, Any]) -> None:
        self._out.write(_json_line({"event": event, **values}))  # at once: notes may come from another thread
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

    def started(self, facts: Facts) -> None:
        self._max_iters = facts.max_iters
        for line in opening_lines(facts):
            self.note(line)

    def stepped(self, now: Stepped) -> None:
        self.note(f"step {now.step:>{len(str(self._max_iters))}}/{self._max_iters}  {pace(now)}  {held(now)}")

    def evaluated(self, step: int, val_loss: float) -> None:
        self.note(f"step {step:>{len(str(self._max_iters))}}/{self._max_iters}  val loss {val_loss:.4f}")

    def note(self, text: str) -> None:
        print(text, file=self._err, flush=True)

    def ended(self, outcome: RunOutcome) -> None:
        print("\n".join([*report(outcome), outcome.last_line]), file=self._out, flush=True)


class Live(RunProgress):
    """For a person at a terminal: two short lines, redrawn (80 columns are enough); the rest is said above them."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as Bar

        self._console = Console(stderr=True, highlight=False)
        self._bar = Bar(
            BarColumn(bar_width=20),
            TextColumn("{task.completed}/{task.total}  {task.fields[figures]}", markup=False),
            console=self._console,
            transient=True,
        )
        self._task = self._bar.add_task("train", total=None, figures="")

    def started(self, facts: Facts) -> None:
        for line in opening_lines(facts):
            self.note(line)
        self._bar.update(self._task, total=facts.max_iters, completed=facts.first_step)
        self._bar.start()

    def stepped(self, now: Stepped) -> None:
        self._bar.update(self._task, completed=now.step, figures=f"{pace(now)}\n{held(now)}")

    def evaluated(self, step: int, val_loss: float) -> None:
        self.note(f"step {step:>6}  val loss {val_loss:.4f}")

    def note(self, text: str) -> None:
        self._console.print(text, markup=False, soft_wrap=True)

    def ended(self, outcome: RunOutcome) -> None:
        self.close()
        Lines().ended(outcome)

    def close(self) -> None:
        self._bar.stop()


class MetricsFile(RunProgress):
    """``metrics.jsonl``: what a plot needs, and what finds a spike."""

    def __init__(self, directory: Path, note: Callable[[str], None]) -> None:
        self._path = directory / METRICS
        self._note = note
        self._lines: WholeLines | None = None

    def started(self, facts: Facts) -> None:
        try:
            self._lines = WholeLines(self._path)
        except OSError as problem:
            self._note(f"no metrics: {self._path}: {reason(problem)}")
        self._write(event="start", step=facts.first_step, max_iters=facts.max_iters, parameters=facts.parameters)

    def stepped(self, now: Stepped) -> None:
        self._write(
            event="step",
            step=now.step,
            loss=now.loss,
            learning_rate=now.learning_rate,
            tokens_per_s=now.tokens_per_s,
            data_wait=now.data_wait,
            anon=now.reading.anon,
            mapped=now.reading.mapped,
            cache=now.reading.cache,
            **({} if now.shares is None else {"shares": now.shares, "epochs": now.epochs}),
        )

    def evaluated(self, step: int, val_loss: float) -> None:
        self._write(event="eval", step=step, val_loss=val_loss)

    def ended(self, outcome: RunOutcome) -> None:
        control = {} if outcome.control is None else {"control_mapped": outcome.control.mapped}
        self._write(event="end", step=outcome.steps, val_loss=outcome.val_loss, budget=outcome.verdict.word, **control)

    def close(self) -> None:
        if self._lines is not None:
            self._lines.close()
            self._lines = None

    def _write(self, **values: Any) -> None:
        if self._lines is None:
            return
        try:
            self._lines.append(_json_line(values).encode())
        except OSError as problem:
            self.close()
            self._note(f"no more metrics, training goes on: {self._path}: {reason(problem)}")


class Board(RunProgress):
    """The same figures for TensorBoard, by torch's own event writer and a thread of its own."""

    def __init__(self, directory: Path) -> None:
        if importlib.util.find_spec("tensorboard") is None:
            raise ValueError(
                "--tensorboard: expected the package tensorboard, got none. Install it with: pip install tensorboard"
            )
        self._directory = directory / "tensorboard"
        self._writer: Any = None  # torch's writer has no types

    def started(self, facts: Facts) -> None:
        from torch.utils.tensorboard import SummaryWriter

        purge = facts.first_step or None  # a resumed run hides what it overtakes
        self._writer = SummaryWriter(str(self._directory), purge_step=purge)

    def stepped(self, now: Stepped) -> None:
        figures = {"loss/train": now.loss, "learning_rate": now.learning_rate}
        figures |= {"tokens_per_s": now.tokens_per_s, "data_wait": now.data_wait}
        figures |= {f"memory_mib/{kind}": held / MIB for kind, held in asdict(now.reading).items()}
        for name, value in figures.items():
            self._writer.add_scalar(name, value, now.step)

    def evaluated(self, step: int, val_loss: float) -> None:
        self._writer.add_scalar("loss/val", val_loss, step)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def files_told(directory: Path, note: Callable[[str], None], *, tensorboard: bool) -> list[RunProgress]:
    """Those that write into the out directory."""
    return [MetricsFile(directory, note), *([Board(directory)] if tensorboard else [])]


def opening_lines(facts: Facts) -> list[str]:
    """The run in four lines."""
    ranks = "1 rank" if facts.world == 1 else f"{facts.world} ranks"
    first = f", from step {facts.first_step:,}" if facts.first_step else ""
    return [
        f"model  {facts.parameters:,} parameters on {facts.compute}, {ranks}; {facts.max_iters:,} steps of "
        f"{facts.rows_per_step} x {facts.block_size} tokens{first}",
        f"data   {facts.data}: {facts.train_tokens:,} train and {facts.val_tokens:,} val tokens "
        f"of {facts.vocab_size:,} ids",
        f"reader strategy {facts.strategy}, holds up to {format_size(facts.reader_holds)} of its budget of "
        f"{format_size(facts.budget)}",
        f"goal   val loss below {facts.unigram:.3f}, the loss of knowing only how often each token occurs",
    ]


def pace(now: Stepped) -> str:
    return f"loss {now.loss:.4f}  {now.tokens_per_s:,.0f} tokens/s  left {clock(now.seconds_left)}"


def held(now: Stepped) -> str:
    memory = now.reading
    return (
        f"data wait {100 * now.data_wait:.2f} %  anon {memory.anon / MIB:.0f}  mapped {memory.mapped / MIB:.0f}  "
        f"cache {memory.cache / MIB:.0f} MiB"
    )


def report(outcome: RunOutcome) -> list[str]:
    """Everything worth reading at the end, but for the last line."""
    verdict, lines = outcome.verdict, []
    if outcome.sample:
        lines += ["", "sample", *(f"  | {line}" for line in outcome.sample.splitlines()), ""]
    lines += [f"memory   {'after warm-up':>13} {'highest':>10} {'growth':>10}"]
    for kind in ("anon", "mapped"):
        before, peak = getattr(verdict.settled, kind), getattr(verdict.peak, kind)
        lines.append(f"  {kind:<6} {before / MIB:>9.1f} MiB {peak / MIB:>6.1f} MiB {(peak - before) / MIB:>+6.1f} MiB")
    grown = max(0, verdict.peak.held - verdict.settled.held)
    lines += [
        f"  anon + mapped grew {format_size(grown)} of the {format_size(verdict.budget)} budget: {verdict.word}",
        f"  cache  {verdict.last.cache / MIB:.1f} MiB of the corpus in the page cache; the kernel's to take back",
        *control_lines(outcome.control, verdict),
        f"val loss {outcome.val_loss:.4f}; {outcome.unigram:.4f} is the loss of knowing only token counts",
        f"time     {format_duration(outcome.seconds)} in all; {100 * outcome.data_wait:.2f} % of training was waiting "
        "for data",
    ]
    if outcome.picture:
        lines.append(f"picture  {outcome.picture}")
    return lines


def control_lines(control: Control | None, verdict: BudgetVerdict) -> list[str]:
    """What the plain way holds on the same tokens, beside what this run was allowed."""
    if control is None:
        return []
    times = control.corpus_bytes / max(1, verdict.budget)
    return [
        f"control  one pass over the same {format_size(control.corpus_bytes)} through a kept np.memmap, in a process "
        "of its own:",
        f"  mapped grew {format_size(control.mapped)}; the corpus is {times:.1f} times this run's budget",
    ]


def clock(seconds: float) -> str:
    whole = max(0, round(seconds))
    hours, minutes = whole // 3600, whole // 60 % 60
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"
