"""Checkpoints: everything a run needs to go on exactly, in files that are always whole.

One idea: ``step-00000150.pt`` is written beside its name, synced and renamed, so a kill or a full disk
leaves the one before; the newest ``keep`` stay, and ``latest.pt`` points at the newest. MemoryNow checks
every record's CRC and then loads with ``weights_only=True``: a checkpoint can hold numbers and text, never
code.

Cost: three times the parameters in bytes x 4 on disk, and one read of the file for the CRCs. What dropout
draws is not in here because it is a function of (seed, step, rank); the loop says so.
"""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import re
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

import torch

from lowtide.atomic import atomic_write
from lowtide.errors import StateError

FORMAT = 1
NAME = re.compile(r"step-(\d{8,})\.pt")
LATEST = "latest.pt"
PARTS = frozenset({"format", "step", "rows", "settings", "shape", "model", "optimizer", "scaler", "feed", "run"})


def saved(directory: Path) -> list[Path]:
    """The checkpoints of a directory, oldest first."""
    if not directory.is_dir():
        return []
    numbered = [(int(match[1]), path) for path in directory.iterdir() if (match := NAME.fullmatch(path.name))]
    return [path for _, path in sorted(numbered)]


def save(directory: Path, contents: Mapping[str, Any], keep: int) -> Path:
    """Write one checkpoint, then let the oldest go. When writing fails nothing that was there is lost."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"step-{contents['step']:08d}.pt"
    try:
        with atomic_write(path) as file:
            writer = _Remembering(file)  # torch hides the disk's OSError behind a RuntimeError of its own
            try:
                torch.save({"format": FORMAT, **contents}, cast(IO[bytes], writer))
            except RuntimeError as problem:
                raise writer.problem or problem from problem
    except OSError as problem:
        raise _save_failed(path, problem, saved(directory)) from problem
    for old in saved(directory)[:-keep]:
        old.unlink(missing_ok=True)
    _point_latest(directory, path.name)
    return path


def _save_failed(path: Path, problem: OSError, others: list[Path]) -> OSError:
    last = f"the last good one is {others[-1]}" if others else "no earlier one exists"
    return OSError(
        problem.errno or 0,
        f"{path}: expected to save the checkpoint, got {os.strerror(problem.errno or 0)!r}; {last}. "
        "Free some space, or use another --out-dir, and start again with --resume.",
    )


def newest(directory: Path) -> Path:
    """The checkpoint to resume from; FileNotFoundError when there is none."""
    found = saved(directory)
    if not found:
        raise FileNotFoundError(f"{directory}: expected a checkpoint to resume from, got none. Start without --resume.")
    return found[-1]


def load(path: Path) -> dict[str, Any]:
    """The contents of a whole checkpoint; StateError, with the one to use instead, for anything else."""
    _check_records(path, every_byte=True)
    return _read(path, mapped=False)


def load_settings(path: Path) -> dict[str, Any]:
    """The settings of the run that wrote a checkpoint, without reading its tensors."""
    _check_records(path, every_byte=False)
    return dict(_read(path, mapped=True)["settings"])


def _check_records(path: Path, *, every_byte: bool) -> None:
    """A torch file is a zip: its directory comes last, so a file cut short has none, and each record has a CRC."""
    if not path.is_file():
        raise FileNotFoundError(f"{path}: expected a checkpoint, got no such file. Check --resume and --out-dir.")
    try:
        with zipfile.ZipFile(path) as records:
            damaged = records.testzip() if every_byte else None
    except (zipfile.BadZipFile, EOFError) as problem:
        raise _damaged(path, problem) from problem
    if damaged is not None:
        raise _damaged(path, zipfile.BadZipFile(f"a wrong checksum in {damaged}"))


def _read(path: Path, *, mapped: bool) -> dict[str, Any]:
    try:
        contents = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except (pickle.UnpicklingError, EOFError, RuntimeError, ValueError) as problem:
        raise _damaged(path, problem) from problem
    if not isinstance(contents, dict) or set(contents) != PARTS or contents["format"] != FORMAT:
        raise StateError(f"{path}: expected a checkpoint of `lowtide train`, got other contents. {_instead(path)}")
    return contents


def _damaged(path: Path, problem: Exception) -> StateError:
    reason = str(problem).splitlines()[0].rstrip(".") or type(problem).__name__
    size = path.stat().st_size
    return StateError(f"{path}: expected a whole checkpoint, got {size:,} bytes with {reason!r}. {_instead(path)}")


def _instead(path: Path) -> str:
    """The newest other checkpoint, or the advice to start again."""
    others = [other for other in saved(path.parent) if other.name != path.name]
    if others:
        return f"Resume from the one before it: --resume {others[-1]}."
    return "No other one is beside it: start again without --resume."


def check_same(path: Path, what: str, then: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """StateError naming each value that a checkpoint and this run must share and do not."""
    differing = [name for name in then if then[name] != now.get(name)]
    if differing:
        was = ", ".join(f"{name}={then[name]}" for name in differing)
        has = ", ".join(f"{name}={now.get(name)}" for name in differing)
        raise StateError(f"{path}: expected the checkpoint's {what} ({was}), got {has}. Leave these out to resume.")


def tidy(directory: Path) -> None:
    """Remove what a killed writer left behind."""
    for temporary in directory.glob(".step-*.tmp"):
        temporary.unlink(missing_ok=True)


def set_aside(directory: Path) -> Path | None:
    """Move an earlier run's checkpoints out of a new run's way, into a directory of their own; nothing is deleted."""
    found: Iterable[Path] = saved(directory)
    if not found:
        return None
    number = 1
    while (aside := directory / f"earlier-{number}").exists():
        number += 1
    aside.mkdir()
    for path in found:
        path.rename(aside / path.name)
    (directory / LATEST).unlink(missing_ok=True)
    return aside


def _point_latest(directory: Path, name: str) -> None:
    """For people and other tools; resuming looks at the numbers, so a filesystem without links is fine."""
    link = directory / f".{LATEST}.{os.getpid()}"
    with contextlib.suppress(OSError):
        link.unlink(missing_ok=True)
        link.symlink_to(name)
        link.replace(directory / LATEST)


class _Remembering(io.RawIOBase):
    """Passes writes on and keeps the OSError that torch would replace by a message of its own."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.problem: OSError | None = None

    def writable(self) -> bool:
        return True

    def write(self, piece: Any) -> int:
        try:
            return self._file.write(piece)
        except OSError as problem:
            self.problem = problem
            raise

    def flush(self) -> None:
        if not self.closed:
            self._file.flush()
