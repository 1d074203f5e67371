"""The plot of a page: stacked areas as inline SVG, axes and lines as HTML over it. Pure text out.

The SVG is stretched to its box and holds shapes only, while every letter is HTML placed by percent: text keeps its size
on any screen, and the plot needs no script. Cost: about 6 bytes per point and kind.
"""

from __future__ import annotations

from collections.abc import Sequence

from lowtide.report.series import STACK, Series, size_ticks, time_ticks
from lowtide.units import format_size

_SIDE = 1000  # of the square the shapes are drawn in, whatever the box's real size
_EDGE = 0.93  # a label above or right of this share of the plot would leave it


def plot(drawn: Series, label: str) -> str:
    """The whole plot, for ``<div class="plot">``. ``label`` is already safe HTML."""
    shapes = "".join(_area(drawn, kind) for kind in reversed(STACK))
    shapes += _retained(drawn)
    budget = any(line.name == "budget" and line.drawn for line in drawn.lines)
    held = f'<path class="held" d="{_path(drawn, drawn.tops("mapped"))}"/>' if budget else ""
    rss = f'<path class="rss" d="{_path(drawn, drawn.rss)}"/>' if any(drawn.rss) else ""
    return (
        f'<div class="ylabels" aria-hidden="true">{_y_labels(drawn)}</div>'
        f'<div class="box" id="plot" tabindex="0" role="slider" aria-label="{label}" '
        f'aria-valuemin="0" aria-valuemax="{len(drawn.seconds) - 1}" aria-valuenow="0" aria-valuetext="">'
        f'<svg viewBox="0 0 {_SIDE} {_SIDE}" preserveAspectRatio="none" aria-hidden="true">'
        f"{_grid(drawn)}{shapes}{held}{rss}</svg>{_lines(drawn)}{_stale(drawn)}"
        '<div class="cursor" id="cursor" hidden><span id="when"></span></div></div>'
        f'<div class="xlabels" aria-hidden="true">{_x_labels(drawn)}</div>'
    )


def spark(seconds: Sequence[float], sizes: Sequence[int], kind: str) -> str:
    """One kind alone on its own scale from zero: the shape of its growth, beside its numbers."""
    top = 1.05 * max(*sizes, 1)
    points = _points(seconds, sizes, top)
    return (
        f'<svg class="spark" viewBox="0 0 {_SIDE} {_SIDE}" preserveAspectRatio="none" aria-hidden="true">'
        f'<path class="{kind}" d="M0 {_SIDE}L{points}L{_SIDE} {_SIDE}Z"/></svg>'
    )


def _area(drawn: Series, kind: str) -> str:
    """Painted from the top kind down, each as a whole area: the next one covers the part below it, so no seams show."""
    tops = drawn.tops(kind)
    if not any(drawn.kinds[kind]):
        return ""
    points = _points(drawn.seconds, tops, drawn.top)
    return f'<path class="area {kind}" data-kind="{kind}" d="M0 {_SIDE}L{points}L{_SIDE} {_SIDE}Z"/>'


def _retained(drawn: Series) -> str:
    """A veil over the part of anon that was freed and is kept."""
    if not any(drawn.retained):
        return ""
    live = tuple(anon - kept for anon, kept in zip(drawn.kinds["anon"], drawn.retained, strict=True))
    upper = _points(drawn.seconds, drawn.kinds["anon"], drawn.top)
    lower = "L".join(reversed(_points(drawn.seconds, live, drawn.top).split("L")))
    return f'<path class="retained" d="M{upper}L{lower}Z"/>'


def _path(drawn: Series, sizes: Sequence[int]) -> str:
    return "M" + _points(drawn.seconds, sizes, drawn.top)


def _points(seconds: Sequence[float], sizes: Sequence[int], top: float) -> str:
    across = _SIDE / (seconds[-1] or 1.0)
    pairs = zip(seconds, sizes, strict=True)
    return "L".join(f"{second * across:.1f} {_SIDE * (1 - size / top):.1f}" for second, size in pairs)


def _grid(drawn: Series) -> str:
    heights = (_SIDE * (1 - size / drawn.top) for size, _ in size_ticks(drawn.top))
    return "".join(f'<path class="grid" d="M0 {height:.1f}H{_SIDE}"/>' for height in heights)


def _y_labels(drawn: Series) -> str:
    ticks = size_ticks(drawn.top)
    return "".join(f'<span style="bottom:{100 * size / drawn.top:.2f}%">{name}</span>' for size, name in ticks)


def _x_labels(drawn: Series) -> str:
    ticks = [(second / drawn.last, name) for second, name in time_ticks(drawn.last)]
    return "".join(
        f'<span{" class=edge" if x > _EDGE else ""} style="left:{100 * x:.2f}%">{name}</span>'
        for x, name in ticks
        if x <= 1
    )


def _lines(drawn: Series) -> str:
    parts = []
    for line in drawn.lines:
        kind = "budget" if line.name == "budget" else "limit"
        words = f"{line.name} {format_size(line.size)}"
        if line.drawn:
            under = " under" if line.size / drawn.top > _EDGE else ""
            parts.append(
                f'<div class="line {kind}{under}" style="bottom:{100 * line.size / drawn.top:.2f}%">'
                f"<span>{words}</span></div>"
            )
        else:
            highest = max(drawn.total(place) for place in range(len(drawn.seconds)))
            words += f", {line.size / max(highest, 1):,.0f}x the highest point"
            parts.append(f'<div class="line {kind} above"><span>{words}</span></div>')
    return "".join(parts)


def _stale(drawn: Series) -> str:
    """A strip along the bottom where sharing and owners come from an older close look."""
    return "".join(
        f'<div class="stale" title="the last close look was older than 2 s here" '
        f'style="left:{100 * begin / drawn.last:.2f}%;width:{100 * (end - begin) / drawn.last:.2f}%"></div>'
        for begin, end in drawn.stale
    )
