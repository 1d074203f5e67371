"""``make doctors``: every program of tests/memory/programs.py under ``lowtide doctor``, each with what is true of it.

Run it: ``python -m benchmarks.doctors [WORDS IN A NAME ...]``. Truth comes from the programs themselves, which ask the
kernel (smaps, status, memory.stat) or their allocator (mallinfo2), or is the number of bytes that was planted; of a
program that tells nothing of its size, the kernel's account of its processes' heaps (smaps_rollup) is added up every
20 ms from outside. A row is wholly right when the kind, the owner, how it ended, the fixes and every size (to 5 %) are.
Without words the table is written into docs/doctors.md. Exit 1 when something was said with high confidence and is
wrong.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import shutil
import sys
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.memory.programs import PROGRAMS, Program, cannot, judged, size_at, wrong

from lowtide.units import format_size

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "doctors.md"
BEGIN, END = "<!-- numbers: doctors -->", "<!-- end -->"


class Outside(threading.Thread):
    """The most heap that the processes below the doctor's command had together, by the kernel's own account."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.most = 0
        self._stop_it = threading.Event()

    def __enter__(self) -> Outside:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop_it.set()
        self.join()

    def run(self) -> None:
        while not self._stop_it.wait(0.02):
            doctors = _children(os.getpid())
            below = [pid for doctor in doctors for child in _children(doctor) for pid in _tree(child)]
            self.most = max(self.most, sum(_heap(pid) for pid in below))


def _children(pid: int) -> list[int]:
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        return [int(word) for task in tasks for word in (task / "children").read_text().split()]
    except OSError:
        return []


def _tree(pid: int) -> list[int]:
    return [pid, *(each for child in _children(pid) for each in _tree(child))]


def _heap(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith("Pss_Anon:"))


@dataclass(frozen=True)
class Row:
    program: Program
    found: dict[str, Any]
    truth: dict[str, int]
    wrong: tuple[str, ...]

    @property
    def confidence(self) -> str:
        return str(self.found["verdict"]["confidence"])

    @property
    def badly_wrong(self) -> bool:
        return bool(self.wrong) and self.confidence == "high"

    def text(self) -> str:
        truth = "; ".join(f"{_place(place, self.program)} {format_size(size)}" for place, size in self.truth.items())
        verdict = self.found["verdict"]["grew"] + _ending(self.found)
        right = "yes" if not self.wrong else "no: " + "; ".join(_cell(line) for line in self.wrong)
        return f"| {self.program.name} | {truth} | {verdict} ({self.confidence}) | {self._error()} | {right} |"

    def _error(self) -> str:
        """The size that is furthest off, in percent."""
        errors = [
            100 * (size_at(place, self.found, self.program.expected.kind) / size - 1)
            for place, size in self.truth.items()
            if size
        ]
        return f"{max(errors, key=abs):+.1f} %" if errors else ""


def _place(place: str, program: Program) -> str:
    if place == "owner":
        return f"{program.expected.kind} of its owner"
    words = place.removeprefix("held.").split(".")
    return " ".join(words).replace("peak", "at most").replace("end", "at the end")


def _ending(found: dict[str, Any]) -> str:
    how = (found["ended"] or {}).get("how")
    return {"oom": ", killed by the kernel", "signal": f", {(found['ended'] or {}).get('signal', '')}"}.get(how, "")


def _cell(text: str) -> str:
    return text.replace("|", "/").replace("\n", " ")[:160]


def main() -> int:
    words = sys.argv[1:]
    chosen = [each for each in PROGRAMS if not words or any(word in each.name for word in words)]
    rows: list[Row] = []
    not_run: list[tuple[Program, str]] = []
    (ROOT / "build").mkdir(exist_ok=True)
    for program in chosen:
        why = cannot(program)
        if not why:
            place = Path(tempfile.mkdtemp(prefix="doctors-", dir=ROOT / "build"))  # on the disk, not in a tmpfs
            try:
                with Outside() as outside:
                    found, truth = judged(program, place)
                if not truth and program.expected.kind == "anon" and program.expected.grew != ("nothing",):
                    truth = {"held.anon.peak": outside.most}
                rows.append(Row(program, found, truth, tuple(wrong(program, found, truth))))
                print(rows[-1].text(), flush=True)
                (ROOT / "build" / "doctors.json").write_text(json.dumps([row.found for row in rows], indent=1))
            except (OSError, AssertionError) as problem:
                why = " ".join(str(problem).split()) or type(problem).__name__
            finally:
                shutil.rmtree(place, ignore_errors=True)
        if why:
            not_run.append((program, why))
            print(f"NOT RUN: {program.name}: {why}", flush=True)
    if not words:
        _write(rows, not_run)
    bad = [row.program.name for row in rows if row.badly_wrong]
    right = sum(not row.wrong for row in rows)
    print(f"{right} of {len(rows)} wholly right; high and wrong: {', '.join(bad) or 'none'}")
    return int(bool(bad))


def _write(rows: list[Row], not_run: list[tuple[Program, str]]) -> None:
    right = sum(not row.wrong for row in rows)
    bad = sum(row.badly_wrong for row in rows)
    lines = [
        BEGIN,
        f"{right} of {len(rows)} programs were judged wholly right; {bad or 'none'} wrongly with high confidence.",
        "",
        "| program | truth | verdict (confidence) | size error | wholly right |",
        "|---|---|---|---:|---|",
        *(row.text() for row in rows),
        "",
        *(f"Not run here: {program.name} ({why})." for program, why in not_run),
        f"{datetime.datetime.now(datetime.UTC).date()}: {os.cpu_count()} CPUs, Linux {platform.release()}, "
        f"Python {platform.python_version()}; load average {os.getloadavg()[0]:.0f}.",
        END,
    ]
    page = PAGE.read_text()
    before, rest = page.split(BEGIN)
    PAGE.write_text(before + "\n".join(lines) + rest.split(END, 1)[1])


if __name__ == "__main__":
    sys.exit(main())
