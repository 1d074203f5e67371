"""What a run says while it works: a live bar for a terminal, plain lines for a log, JSON lines for machines.

One idea: the loop tells one `RunProgress` what happened, as plain values, and never prints; three small
classes turn that into text. For people everything but the last report goes to stderr. With ``--json``
stdout holds one JSON object per line and nothing else; the last one, ``"event": "end"``, has the final
figures.
"""

from __future__ import annotations

import json
import math
import sys
from dataclasses import asdict, dataclass
from typing import Any, Protocol, TextIO

from lowtide.prepare import Control
from lowtide.train.gauge import BudgetVerdict, MemoryNow
from lowtide.units import MIB, format_duration, format_size


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


class RunProgress(Protocol):
    """The five things worth telling; ``close`` comes last, also after an error."""

    def started(self, facts: Facts) -> None: ...
    def stepped(self, now: Stepped) -> None: ...
    def evaluated(self, step: int, val_loss: float) -> None: ...
    def note(self, text: str) -> None: ...
    def ended(self, outcome: RunOutcome) -> None: ...
    def close(self) -> None: ...


class Silent:
    """For every rank but the first."""

    def started(self, facts: Facts) -> None: ...
    def stepped(self, now: Stepped) -> None: ...
    def evaluated(self, step: int, val_loss: float) -> None: ...
    def note(self, text: str) -> None: ...
    def ended(self, outcome: RunOutcome) -> None: ...
    def close(self) -> None: ...


class Several:
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


class JsonLines:
    """One object a line on stdout."""

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

    def close(self) -> None: ...

    def _write(self, event: str, values: dict[str, Any]) -> None:
        safe = {name: None if isinstance(v, float) and not math.isfinite(v) else v for name, v in values.items()}
        self._out.write(json.dumps({"event": event, **safe}) + "\n")  # at once: notes may come from another thread
        self._out.flush()


class Lines:
    """Plain lines on stderr; the report on stdout."""

    def __init__(self, err: TextIO | None = None, out: TextIO | None = None) -> None:
        self._err = sys.stderr if err is None else err
        self._out = sys.stdout if out is None else out
        self._max_iters = 0

    def started(self, facts: Facts) -> None:
        self._max_iters = facts.max_iters
        for line in describe(facts):
            self.note(line)

    def stepped(self, now: Stepped) -> None:
        self.note(f"step {now.step:>{len(str(self._max_iters))}}/{self._max_iters}  {pace(now)}  {held(now)}")

    def evaluated(self, step: int, val_loss: float) -> None:
        self.note(f"step {step:>{len(str(self._max_iters))}}/{self._max_iters}  val loss {val_loss:.4f}")

    def note(self, text: str) -> None:
        print(text, file=self._err, flush=True)

    def ended(self, outcome: RunOutcome) -> None:
        print("\n".join([*report(outcome), outcome.last_line]), file=self._out, flush=True)

    def close(self) -> None: ...


def describe(facts: Facts) -> list[str]:
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
