"""One line about a process that still runs: at the bottom of a terminal, or one per interval in a log.

The same words go to both. At a terminal scroll margins keep the last line free, so that the command's own output
scrolls above it; without a terminal nothing is drawn.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import time

from lowtide.memory import KINDS, Sample, Trace, Verdict
from lowtide.report.content import visible
from lowtide.units import format_duration, format_size


def log_line(trace: Trace, verdict: Verdict) -> str:
    """What is held now and what grew so far, as one line that a log can be searched by."""
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    if not trace.samples:
        return f"{stamp} lowtide no sample yet"
    last = trace.samples[-1]
    sizes = " ".join(f"{kind}={_short_size(last.of(kind))}" for kind in KINDS)
    retained = f" retained={_short_size(last.retained)}" if last.retained else ""
    limit = ""
    if verdict.held is not None and verdict.held.limit:
        limit = f" limit={_short_size(verdict.held.limit)} used={verdict.held.share or 0:.0%}"
    if last.cgroup is not None:
        limit += f" cgroup={_short_size(last.cgroup.current)} working_set={_short_size(last.cgroup.working_set)}"
    danger = " DANGER" if verdict.danger else ""
    after = format_duration(trace.seconds).replace(" ", "")
    top = f" by={visible(verdict.who[0].name).replace(' ', '_')}" if verdict.who else ""
    return f"{stamp} lowtide after={after} {sizes}{retained}{limit} grew={verdict.grew}{top}{danger}"


def _short_size(size: int) -> str:
    return format_size(size).replace(" ", "").replace(",", "")


class StatusLine:
    """The terminal's last line, kept free by scroll margins: the command's own output scrolls above it."""

    def __init__(self) -> None:
        self._on = sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        self._rows = 0

    def __enter__(self) -> StatusLine:
        return self

    def __exit__(self, *_: object) -> None:
        if self._rows:
            self._write(f"\0337\033[r\033[{self._rows};1H\033[2K\0338")

    def show(self, sample: Sample | None) -> None:
        if not self._on or sample is None:
            return
        columns, rows = shutil.get_terminal_size()
        if rows != self._rows:
            self._rows = rows  # a line feed first, so that nothing of the command's lies under ours
            self._write(f"\n\0337\033[1;{rows - 1}r\0338\033[1A")
        parts = [f"{kind} {format_size(sample.of(kind))}" for kind in KINDS]
        line = f"lowtide doctor {sample.seconds:,.0f} s  " + "  ".join(parts)
        self._write(f"\0337\033[{rows};1H\033[2K\033[7m{line[:columns]}\033[0m\0338")

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError):  # a terminal that has gone: what is shown here goes on without it
            sys.stderr.write(text)
            sys.stderr.flush()
