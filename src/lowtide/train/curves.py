"""Loss and memory over time as one PNG.

One idea: two panels over the same minutes, because the claim is about both at once: the loss falls while memory stays
where it was. Where a control was measured, a third one puts the growth of both beside the budget. Needs matplotlib
(the ``report`` extra), which is imported only here and only when drawing; costs about a second.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lowtide.atomic import atomic_write
from lowtide.prepare import Control
from lowtide.train.gauge import SETTLE_STEPS, BudgetVerdict, CurvePoint
from lowtide.units import MIB, format_size

BLUE, ORANGE, GREEN, GREY = "#1f5fa8", "#d9722b", "#3a8f5c", "#6b7280"


def draw(
    path: Path,
    points: Sequence[CurvePoint],
    unigram: float,
    verdict: BudgetVerdict,
    control: Control | None = None,
) -> bool:
    """Write the picture; False when matplotlib is not installed."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        return False
    with matplotlib.rc_context({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False}):
        panels = 2 if control is None else 3
        figure = Figure(figsize=(9, 3.25 * panels), dpi=120, layout="constrained")
        above, below, *last = figure.subplots(panels, 1)
        above.sharex(below)
        _draw_loss(above, points, unigram)
        _draw_memory(below, points, verdict)
        if control is not None:
            _draw_control(last[0], points, verdict, control)
        with atomic_write(path) as file:
            figure.savefig(file, format="png")
    return True


def _draw_loss(axes: Any, points: Sequence[CurvePoint], unigram: float) -> None:
    trained = [point for point in points if not math.isnan(point.loss)]
    checked = [point for point in points if not math.isnan(point.val_loss)]
    axes.plot([p.seconds / 60 for p in trained], [p.loss for p in trained], color=BLUE, linewidth=1.2, label="train")
    axes.plot(
        [p.seconds / 60 for p in checked],
        [p.val_loss for p in checked],
        color=ORANGE,
        marker="o",
        markersize=4,
        label="val",
    )
    if not math.isnan(unigram):
        axes.axhline(
            unigram, color=GREY, linestyle="--", linewidth=1, label=f"knowing only token counts ({unigram:.2f})"
        )
    axes.set_ylabel("loss, nats a token")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False)
    axes.set_title("Loss", loc="left", fontweight="bold")


def _draw_memory(axes: Any, points: Sequence[CurvePoint], verdict: BudgetVerdict) -> None:
    minutes = [point.seconds / 60 for point in points]
    anon = [point.reading.anon / MIB for point in points]
    mapped = [point.reading.mapped / MIB for point in points]
    cache = [point.reading.cache / MIB for point in points]
    labels = (
        "anon: heap of torch, model, reader",
        "mapped: file pages in this process",
        "cache: the corpus' page cache",
    )
    axes.stackplot(minutes, anon, mapped, cache, colors=(BLUE, GREEN, ORANGE), labels=labels, alpha=0.75, linewidth=0)
    allowed = (verdict.settled.held + verdict.budget) / MIB
    text = f"anon + mapped after warm-up, plus the budget of {format_size(verdict.budget)}: {verdict.word}"
    axes.axhline(allowed, color=GREY, linestyle="--", linewidth=1, label=text)
    axes.set_ylim(0, 1.55 * max(allowed, *(sum(kinds) for kinds in zip(anon, mapped, cache, strict=True))))
    axes.set_ylabel("MiB")
    axes.set_xlabel("minutes")
    axes.legend(frameon=False, loc="upper left", ncols=2, fontsize=9)
    axes.set_title("Memory by kind", loc="left", fontweight="bold")


def _draw_control(axes: Any, points: Sequence[CurvePoint], verdict: BudgetVerdict, control: Control) -> None:
    """Growth of anon + mapped, of this run since its warm-up and of the pass through kept maps, side by side."""
    since = [point for point in points if point.step >= SETTLE_STEPS] or list(points)
    first, last = since[0].seconds, since[-1].seconds
    shares = [100 * (point.seconds - first) / max(1e-9, last - first) for point in since]
    grown = [(point.reading.held - verdict.settled.held) / MIB for point in since]
    passed = [100 * share for share, _, _ in control.trace]
    kept = [mapped / MIB for _, mapped, _ in control.trace]  # its anon is the list of windows it goes through
    axes.plot(passed, kept, color=ORANGE, linewidth=1.6, label="control: one pass through a kept np.memmap")
    axes.plot(shares, grown, color=BLUE, linewidth=1.6, label="this run since its warm-up")
    axes.axhline(
        verdict.budget / MIB, color=GREY, linestyle="--", linewidth=1, label=f"budget {format_size(verdict.budget)}"
    )
    axes.axhline(
        control.corpus_bytes / MIB,
        color=GREY,
        linestyle=":",
        linewidth=1,
        label=f"the train tokens, {format_size(control.corpus_bytes)}",
    )
    axes.set_ylim(min(0.0, *grown), 1.5 * control.corpus_bytes / MIB)
    axes.set_ylabel("MiB")
    axes.set_xlabel("% of the run, and of the pass")
    axes.legend(frameon=False, loc="upper left", ncols=2, fontsize=9)
    axes.set_title("Growth of anon + mapped", loc="left", fontweight="bold")
