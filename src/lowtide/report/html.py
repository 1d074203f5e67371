"""A trace and its verdict as one HTML page that needs nothing else: no network, no fonts, no other file.

The page is whole before any script runs; page.js only adds reading values off the plot. Text from outside is escaped in
one function (``_safe``), data for the script is JSON in which no tag can be closed, and a content policy with the
script's own hash forbids everything else. Costs about 100 KB and 50 ms for any length of trace.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import os
from importlib import resources
from string import Template
from typing import Any

from lowtide.memory import KINDS, Trace, Verdict
from lowtide.memory.judge.holding import last_whole
from lowtide.memory.samples import HELD
from lowtide.memory.traces import to_dict
from lowtide.report.chart import plot, spark
from lowtide.report.content import (
    HEADINGS,
    GrowthRow,
    Section,
    Table,
    file_table,
    first_sections,
    growth_rows,
    held_text,
    mood,
    now_text,
    owner_text,
    process_table,
    row_texts,
    started_text,
    trace_facts,
    visible,
)
from lowtide.report.series import STACK, Series, series
from lowtide.storage.own_files import atomic_write
from lowtide.units import format_duration, format_size

_WORD_COLUMNS = ("name", "", "file", "filesystem")  # columns of words; the others are numbers

_MUCH = 8 * 1024**2  # of retained heap, from which on the page speaks of it
_STALE_NOTE = (
    " Where a dotted strip runs along the bottom, owners were last looked at over 2 s before: little had changed."
)
_RETAINED_NOTE = " The pale part of anon, {} at most, was freed by the program and is kept by its allocator."


def write(trace: Trace, verdict: Verdict, path: str | os.PathLike[str]) -> None:
    """Write the page; what was at ``path`` stays until the new page is whole."""
    with atomic_write(path) as file:
        file.write(page(trace, verdict).encode())


def page(trace: Trace, verdict: Verdict) -> str:
    """The page as text."""
    drawn = series(trace, verdict)
    first, then = first_sections(trace, verdict)
    script, style = _asset("page.js"), _asset("page.css")
    return Template(_asset("page.html")).substitute(
        policy=f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{_digest(script)}'",
        style=style,
        script=script,
        data=script_json(_data(trace, verdict, drawn)),
        title=_safe(f"{verdict.grew} grew" if verdict.grew != "nothing" else "nothing grew"),
        mood=mood(verdict),
        grew=_safe(verdict.grew),
        headline=_safe(verdict.headline),
        held=html.escape(held_text(trace, verdict)),
        confidence=_safe(verdict.confidence),
        command=_safe(trace.command or "unknown command"),
        when=_safe(f"{started_text(trace)}, watched for {format_duration(trace.seconds)}"),
        first=_sections(first),
        chart=_chart(trace, verdict, drawn),
        growth=_growth(trace, verdict, drawn),
        sections=_sections(then),
        processes=_table(process_table(trace)),
        files=_table(file_table(trace)),
        facts="".join(
            f"<div><dt>{_safe(name)}</dt><dd>{_safe(value)}</dd></div>" for name, value in trace_facts(trace, verdict)
        ),
    )


def script_json(data: Any) -> str:
    """JSON that can stand inside a script element: no ``<`` to close it with, and nothing but ASCII."""
    text = json.dumps(data, ensure_ascii=True, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _safe(text: str) -> str:
    return html.escape(visible(text), quote=True)


def _asset(name: str) -> str:
    return resources.files("lowtide.report").joinpath(name).read_text(encoding="utf-8")


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _data(trace: Trace, verdict: Verdict, drawn: Series | None) -> dict[str, Any]:
    """What the script shows, and the verdict for programs that read the page later."""
    columns = {} if drawn is None else {"seconds": [round(each, 3) for each in drawn.seconds], "kinds": drawn.kinds}
    rss = [] if drawn is None or not any(drawn.rss) else drawn.rss
    return {"command": trace.command, "verdict": to_dict(verdict), "stack": STACK, "rss": rss, **columns}


def _chart(trace: Trace, verdict: Verdict, drawn: Series | None) -> str:
    if drawn is None or verdict.held is None:
        return '<p class="empty">No sample was taken, so there is nothing to draw.</p>'
    # At rest the legend says what the table says: the end is the last sample before a program takes itself apart.
    end = {each.kind: each.end for each in verdict.held.kinds}
    rows = "".join(
        f'<tr><th scope="row"><i class="swatch {kind}"></i>{kind}</th>'
        f'<td data-read="{kind}">{format_size(end[kind])}</td></tr>'
        for kind in reversed(STACK)
        if kind in KINDS or any(drawn.kinds[kind])
    )
    held = sum(end[kind] for kind in HELD)
    sums = [("sum", "all kinds", sum(end[kind] for kind in STACK), ""), ("held", "counted by a budget", held, "held")]
    if any(drawn.rss):
        sums.append(("rss", "RSS in other tools", last_whole(trace).rss, "rss"))
    rows += "".join(
        f'<tr class="sum"><th scope="row"><i class="swatch {mark}"></i>{words}</th>'
        f'<td data-read="{name}">{format_size(size)}</td></tr>'
        for name, words, size, mark in sums
    )
    thinned = (
        f"; {len(drawn.seconds):,} of {drawn.of:,} samples drawn, peaks kept" if drawn.of > len(drawn.seconds) else ""
    )
    stale = _STALE_NOTE if drawn.stale else ""
    stale += _RETAINED_NOTE.format(format_size(max(drawn.retained))) if max(drawn.retained, default=0) >= _MUCH else ""
    return (
        f'<div class="plot">{plot(drawn, "memory by kind over time; arrow keys move along it")}</div>'
        f'<table class="legend"><caption id="at">{now_text(trace)}</caption>{rows}</table>'
        f'<p class="note">From the bottom up: what nobody can take back (anon, shmem, tables), then mapped, '
        f"then dirty and cache{thinned}.{stale}</p>"
    )


def _growth(trace: Trace, verdict: Verdict, drawn: Series | None) -> str:
    rows = growth_rows(trace, verdict)
    if drawn is None or not rows:
        return ""
    body, names = [], (now_text(trace), *HEADINGS[1:4])
    for row in rows:
        *numbers, meaning = row_texts(row)
        body.append(
            f'<tr class="{"guilty" if row.guilty else ""}"><th scope="row"><i class="swatch {row.kind}"></i>{row.kind}'
            f"<small>{_safe(meaning)}</small>{_owners(row)}</th>"
            + f"<td>{spark(drawn.seconds, drawn.kinds[row.kind], row.kind)}</td>"
            + "".join(f'<td data-label="{name}">{each}</td>' for name, each in zip(names, numbers, strict=True))
            + "</tr>"
        )
    head = "".join(f'<th scope="col">{name}</th>' for name in ("kind", "over time", *names))
    return f"<table class='growth'><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"


def _owners(row: GrowthRow) -> str:
    """Who had it when there was most of it: the three largest, and what nobody had."""
    shown = [owner for owner in row.owners[:3] if 20 * owner.bytes >= row.most]
    return "".join(f'<small class="owner">{_safe(owner_text(owner))}</small>' for owner in shown)


def _sections(sections: tuple[Section, ...]) -> str:
    parts = []
    for title, lines in sections:
        items = "".join(f"<p>{html.escape(line)}</p>" for line in lines)
        parts.append(f'<div class="{title.replace(" ", "-")}"><dt>{title}</dt><dd>{items}</dd></div>')
    return "".join(parts)


def _table(table: Table) -> str:
    if not table.rows:
        return '<p class="empty">None was seen.</p>'
    left = tuple("word" if name in _WORD_COLUMNS else "number" for name in table.headings)
    head = "".join(
        f'<th scope="col" class="{side}">{name}</th>' for side, name in zip(left, table.headings, strict=True)
    )
    rows = "".join(
        "<tr>"
        + "".join(
            f'<td class="{side}" data-label="{name}">{html.escape(cell)}</td>'
            for side, name, cell in zip(left, table.headings, row, strict=True)
        )
        + "</tr>"
        for row in table.rows
    )
    more = f'<p class="note">{table.more}</p>' if table.more else ""
    return (
        f'<div class="wide"><table class="list"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>{more}'
    )
