"""The ledger: which rows the weights were trained on, one line per step, through any number of kills.

A step's line holds the span of rows it used and a sum over them of (checksum of the row) x (odd weight of its place),
so that ranks can each sum their own share. Every run first writes where it begins: at which step (``resume``) of which
branch (``of``), and as which one it goes on (``branch``), so that `chain` knows which lines no longer count. A line is
written whole or not at all (`WholeLines`, which writes ``metrics.jsonl`` too). Cost: a crc32 of each batch and one
write of 80 bytes per step.
"""

from __future__ import annotations

import contextlib
import json
import os
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lowtide.errors import StateError
from lowtide.storage.own_files import open_own
from lowtide.train.checkpoints import SaveError, reason

_WRAP = 1 << 62  # sums stay inside a signed 64-bit integer, which is what ranks can add up


def checksum(x: NDArray[np.integer], first_row: int) -> int:
    """A number for these rows at these places of the stream; sums over ranks modulo 2**62."""
    total = 0
    for place, row in enumerate(np.ascontiguousarray(x), first_row):
        total += zlib.crc32(row.tobytes()) * (2 * place + 1)
    return total % _WRAP


def add_sums(checksums: list[int]) -> int:
    return sum(checksums) % _WRAP


class WholeLines:
    """A file that grows by whole lines, one system call each; an OSError leaves it as it was. One writer only."""

    def __init__(self, path: str | Path) -> None:
        self._file = open_own(path, os.O_RDWR | os.O_CREAT)
        self._descriptor = self._file.number
        size = end = os.fstat(self._descriptor).st_size
        while end and os.pread(self._descriptor, 1, end - 1) != b"\n":
            end -= 1
        if end < size:
            os.ftruncate(self._descriptor, end)
        self._end = end

    def append(self, line: bytes) -> None:
        try:
            done = 0
            while done < len(line):  # a write may take only part of it
                done += os.pwrite(self._descriptor, line[done:], self._end + done)
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, self._end)
            raise
        self._end += len(line)

    def close(self) -> None:
        self._file.close()


class Ledger:
    """Appends whole lines. Every rank has one, and only the first writes."""

    def __init__(self, path: str | Path, *, write: bool = True) -> None:
        self._path = path
        self._lines = WholeLines(path) if write else None

    def began(self, step: int, of: int = 1, branch: int = 1) -> None:
        """A run begins here: of this branch, earlier lines about this step and later ones no longer count."""
        self._append({"resume": step, "of": of, "branch": branch})

    def stepped(self, step: int, first: int, last: int, sum_: int) -> None:
        self._append({"step": step, "first": first, "last": last, "sum": sum_})

    def _append(self, entry: dict[str, int]) -> None:
        line = json.dumps(entry, separators=(",", ":")).encode() + b"\n"
        if self._lines is None:
            return
        try:
            self._lines.append(line)
        except OSError as problem:
            raise SaveError(
                f"{self._path}: expected to add a line of {len(line)} bytes to the ledger, got {reason(problem)}. "
                "Free some space and start again with --resume.",
                problem.errno,
            ) from problem

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        if self._lines is not None:
            self._lines.close()


def chain(path: str | Path) -> list[dict[str, int]]:
    """The steps behind the newest weights, in order; StateError when a step is missing or a line cannot be read.

    A branch that was killed before it saved leaves the one it came from as it was, and the next run may go on there.
    """
    branch, steps = 1, list[dict[str, int]]()
    branches = {branch: steps}
    *lines, _torn = Path(path).read_bytes().split(b"\n")  # what follows the last line's end was never finished
    for number, line in enumerate(lines, 1):
        entry = _ledger_entry(path, number, line)
        if "resume" in entry:
            before = branches.get(entry.get("of", branch), steps)  # lines of older ledgers name no branch
            branch = entry.get("branch", branch)
            branches[branch] = steps = before[: entry["resume"]]
            continue
        if entry["step"] != len(steps):
            raise StateError(
                f"{path}: expected a line for step {len(steps)}, got step {entry['step']}. "
                "Keep one ledger for all of a run, however often it is resumed."
            )
        steps.append(entry)
    return steps


def _ledger_entry(path: str | Path, number: int, line: bytes) -> dict[str, int]:
    with contextlib.suppress(ValueError):
        entry = json.loads(line)
        if isinstance(entry, dict) and {"resume", "step"} & entry.keys():
            return entry
    raise StateError(
        f"{path}: expected a step in line {number}, got {line[:60].decode(errors='replace')!r}. "
        "Keep nothing else in a ledger."
    )
