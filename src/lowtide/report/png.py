"""What draws PNG: memory by kind over time (``write``), and any curves and stacked areas from plain data
(``write_panels``).

matplotlib (the ``report`` extra) is imported here alone, and only when drawing, which costs about a second. In the
picture of a trace the answer is the title and the areas carry their own names where there is room. Outside text is
drawn as plain letters: a ``$`` in a path is no formula.
"""

from __future__ import annotations

import importlib.util
import os
import textwrap
import warnings
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from lowtide.errors import LowtideError
from lowtide.memory import Trace, Verdict
from lowtide.memory.judge.findings import COLOURS
from lowtide.report.content import started_text, visible
from lowtide.report.series import STACK, Series, series, size_ticks, time_ticks
from lowtide.storage.own_files import atomic_write
from lowtide.units import format_duration, format_size

_INK, _SOFT, _GRID, _RED = "#1d2329", "#5b6670", "#e9e7e2", "#b3261e"
_THICK_ENOUGH = 0.055  # an area thinner than this share of the plot is named in the legend only
_NAME_WIDTH = 0.17  # of the plot: "mapped 1,023 MiB" in bold
_CLIP = 100  # characters of the command line in the picture
_NO_MATPLOTLIB = (
    "picture: expected matplotlib to be installed, got none. Install it with: pip install 'lowtide[report]'."
)


def check() -> None:
    """LowtideError when no picture can be drawn here, found out without importing anything."""
    if importlib.util.find_spec("matplotlib") is None:
        raise LowtideError(_NO_MATPLOTLIB)


@dataclass(frozen=True)
class Curve:
    """Points in the order of ``x``. ``dots``: with a mark at each, where there are few."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    colour: str
    dots: bool = False


@dataclass(frozen=True)
class Level:
    """A height to compare curves with: a dashed line across the panel, or a dotted one."""

    label: str
    y: float
    dotted: bool = False


@dataclass(frozen=True)
class Panel:
    """One plot of a picture. ``areas`` are stacked in the order given and share their ``x``; ``bottom`` and ``top``
    bound the y axis where they are given; ``with_next``: over the same x axis as the panel below it."""

    title: str
    x_label: str = ""
    y_label: str = ""
    curves: tuple[Curve, ...] = ()
    areas: tuple[Curve, ...] = ()
    levels: tuple[Level, ...] = ()
    bottom: float | None = None
    top: float | None = None
    with_next: bool = False


def write_panels(path: str | os.PathLike[str], panels: Sequence[Panel]) -> None:
    """Write panels below each other as one picture; LowtideError when matplotlib is not installed."""
    with _new_figure(width=9, height=3.25 * len(panels), dpi=120) as figure:
        figure.set_layout_engine("constrained")
        places = list(figure.subplots(len(panels), 1, squeeze=False)[:, 0])
        for number, (axes, panel) in enumerate(zip(places, panels, strict=True)):
            if panel.with_next and number + 1 < len(places):
                axes.sharex(places[number + 1])
            _draw_panel(axes, panel)
        _save(figure, path)


def write(trace: Trace, verdict: Verdict, path: str | os.PathLike[str]) -> None:
    """Write the picture of a trace; LowtideError when matplotlib is not installed or there is nothing to draw."""
    drawn = series(trace, verdict)
    with _new_figure(width=10, height=5.4, dpi=150) as figure:
        if drawn is None:
            raise LowtideError("picture: expected a trace with samples, got none. Watch the program for longer.")
        _draw(figure.add_axes((0.085, 0.135, 0.9, 0.63)), drawn)
        _letter(figure, trace, verdict, drawn)
        _save(figure, path)


@contextmanager
def _new_figure(*, width: float, height: float, dpi: int) -> Iterator[Any]:
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as problem:
        raise LowtideError(_NO_MATPLOTLIB) from problem
    with matplotlib.rc_context({"font.size": 10, "text.parse_math": False}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")  # a box is drawn in its place
        yield Figure(figsize=(width, height), dpi=dpi, facecolor="white")


def _save(figure: Any, path: str | os.PathLike[str]) -> None:
    with atomic_write(path) as file:
        figure.savefig(file, format="png")


def _draw_panel(axes: Any, panel: Panel) -> None:
    if panel.areas:
        columns, colours = [area.y for area in panel.areas], [area.colour for area in panel.areas]
        labels = [area.label for area in panel.areas]
        axes.stackplot(panel.areas[0].x, *columns, colors=colours, labels=labels, alpha=0.75, linewidth=0)
    for curve in panel.curves:
        marks = {"marker": "o", "markersize": 4} if curve.dots else {}
        axes.plot(curve.x, curve.y, color=curve.colour, linewidth=1.4, label=curve.label, **marks)
    for level in panel.levels:
        style = ":" if level.dotted else "--"
        axes.axhline(level.y, color=_SOFT, linestyle=style, linewidth=1, label=level.label)
    axes.set_ylim(panel.bottom, panel.top)
    axes.set_xlabel(panel.x_label)
    axes.set_ylabel(panel.y_label)
    axes.set_title(panel.title, loc="left", fontweight="bold")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    if panel.areas or panel.curves or panel.levels:
        axes.legend(frameon=False, ncols=2, fontsize=9)


def _draw(axes: Any, drawn: Series) -> None:
    columns = [drawn.kinds[kind] for kind in STACK]
    colours = [COLOURS[kind] for kind in STACK]
    axes.stackplot(drawn.seconds, *columns, colors=colours, linewidth=0)
    _draw_retained(axes, drawn)
    for line in drawn.lines:
        if line.drawn:
            colour = _RED if line.name == "budget" else _INK
            axes.axhline(line.size, color=colour, linestyle=(0, (5, 3)), linewidth=1.6)
            text = f"{line.name} {format_size(line.size)}"
            box = {"facecolor": "white", "edgecolor": "none", "pad": 1.5, "alpha": 0.85}
            axes.text(0.008 * drawn.last, line.size + 0.012 * drawn.top, text, color=colour, weight="bold", bbox=box)
    if any(drawn.rss):
        axes.plot(drawn.seconds, drawn.rss, color=_INK, linestyle=":", linewidth=1.6)
    _name_areas(axes, drawn)
    axes.set_xlim(0, drawn.last)
    axes.set_ylim(0, drawn.top)
    axes.set_yticks(*zip(*size_ticks(drawn.top), strict=True))
    axes.set_xticks(*zip(*time_ticks(drawn.last), strict=True))
    axes.grid(axis="y", color=_GRID)
    axes.set_axisbelow(True)
    axes.tick_params(length=0, colors=_SOFT)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(_SOFT)


def _draw_retained(axes: Any, drawn: Series) -> None:
    """The part of anon that was freed and is kept, paler and hatched."""
    if max(drawn.retained, default=0) < _THICK_ENOUGH * drawn.top:
        return
    live = [anon - kept for anon, kept in zip(drawn.kinds["anon"], drawn.retained, strict=True)]
    style = {"facecolor": "white", "alpha": 0.4, "hatch": "//", "edgecolor": COLOURS["anon"], "linewidth": 0}
    axes.fill_between(drawn.seconds, live, drawn.kinds["anon"], **style)
    name = f"retained {format_size(max(drawn.retained))}"
    axes.text(0.98 * drawn.last, live[-1] + 0.8 * drawn.retained[-1], name, ha="right", color=_INK, weight="bold")


def _name_areas(axes: Any, drawn: Series) -> None:
    """Each kind's name and peak inside its area, where a level band of it is thickest; thin ones stay unnamed."""
    for kind in STACK:
        sizes, tops = drawn.kinds[kind], drawn.tops(kind)
        bottoms = tuple(top - size for top, size in zip(tops, sizes, strict=True))
        gap, middle, height = max(_bands(drawn.seconds, bottoms, tops))
        if gap >= _THICK_ENOUGH * drawn.top:
            colour = _INK if kind == "cache" else "white"
            name = f"{kind} {format_size(max(sizes))}"
            axes.text(middle, height, name, ha="center", va="center", color=colour, weight="bold")


def _bands(seconds: Sequence[float], bottoms: Sequence[int], tops: Sequence[int]) -> Iterator[tuple[int, float, float]]:
    """Level bands as wide as a name: (thickness, middle in seconds, middle in bytes)."""
    width = _NAME_WIDTH * seconds[-1]
    for step in range(21):
        begin = (seconds[-1] - width) * step / 20
        end = min(bisect_left(seconds, begin + width), len(seconds) - 1)  # the sum may round to beyond the last
        inside = range(bisect_right(seconds, begin) - 1, end + 1)
        low, high = max(bottoms[place] for place in inside), min(tops[place] for place in inside)
        yield high - low, begin + width / 2, (high + low) / 2


def _letter(figure: Any, trace: Trace, verdict: Verdict, drawn: Series) -> None:
    title = textwrap.wrap(visible(verdict.headline), 84)[:2]
    figure.text(0.02, 0.965, "\n".join(title), fontsize=13, weight="bold", color=_INK, va="top", linespacing=1.25)
    command = visible(trace.command)
    shown = command if len(command) <= _CLIP else command[: _CLIP - 3] + "..."
    figure.text(0.02, 0.862 if len(title) == 2 else 0.905, shown, family="monospace", fontsize=9, color=_SOFT, va="top")
    _legend(figure, drawn)
    facts = [started_text(trace), f"{len(trace.samples):,} samples over {format_duration(trace.seconds)}"]
    facts += [visible(trace.machine[name]) for name in ("system",) if name in trace.machine]
    facts += [f"{line.name} {format_size(line.size)}, above the plot" for line in drawn.lines if not line.drawn]
    figure.text(0.02, 0.02, " · ".join(facts), fontsize=8, color=_SOFT)
    figure.text(0.985, 0.02, "Lowtide", fontsize=9, weight="bold", color=_SOFT, ha="right")


def _legend(figure: Any, drawn: Series) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Any] = [Patch(color=COLOURS[kind], label=kind) for kind in STACK if any(drawn.kinds[kind])]
    handles.append(Line2D([], [], color=_INK, linestyle=":", linewidth=1.6, label="RSS, as other tools show it"))
    look = {"ncols": len(handles), "frameon": False, "fontsize": 9, "handlelength": 1.1, "columnspacing": 1.3}
    figure.legend(handles=handles, loc="upper left", bbox_to_anchor=(0.075, 0.84), labelcolor=_INK, **look)
