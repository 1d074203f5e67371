"""One checkpoint: everything a run needs to go on exactly, in a file that is always whole.

One idea: it is written beside its name, synced and renamed, so a kill or a full disk leaves what was there before.
Reading checks every record's CRC and then loads with ``weights_only=True``: a checkpoint can hold numbers and text,
never code. An error names a checkpoint to use instead, and only one that has been read to its end just now.

Cost: three times the parameters in bytes x 4 on disk, and one read of the file for the CRCs. What dropout draws is not
in here because it is a function of (seed, step, rank). Which checkpoints a directory has and keeps: ``branches.py``.
"""

from __future__ import annotations

import contextlib
import io
import pickle
import shlex
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

import torch

from lowtide.atomic import atomic_write
from lowtide.errors import LowtideError, StateError
from lowtide.train.run_lock import SaveError, reason

FORMAT = 1
PARTS = frozenset({"format", "step", "rows", "settings", "shape", "model", "optimizer", "scaler", "feed", "run"})


def write(path: Path, contents: Mapping[str, Any], beside: Sequence[Path] = ()) -> None:
    """Write one checkpoint whole. When that fails, nothing that was there is lost; ``beside`` is what there is else."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as file:
            writer = _Remembering(file)  # torch hides the disk's OSError behind a RuntimeError of its own
            try:
                torch.save({"format": FORMAT, **contents}, cast(IO[bytes], writer))
            except RuntimeError as problem:
                raise writer.problem or problem from problem
    except OSError as problem:
        last = f"the last good one is {beside[-1]}" if beside else "no earlier one exists"
        raise SaveError(
            f"{path}: expected to save the checkpoint, got {reason(problem)}; {last}. "
            "Free some space, or use another --out-dir, and start again with --resume.",
            problem.errno,
        ) from problem


def load(path: Path) -> dict[str, Any]:
    """The contents of a whole checkpoint; StateError, with the one to use instead, for anything else."""
    return _advising(path, whole=True)


def load_settings(path: Path) -> dict[str, Any]:
    """The settings of the run that wrote a checkpoint, without reading its tensors."""
    return dict(_advising(path, whole=False)["settings"])


def load_progress(path: Path) -> dict[str, Any]:
    """Where the run that wrote a checkpoint was (step, rows, feed) and its settings, without reading its tensors."""
    contents = _advising(path, whole=False)
    return {name: contents[name] for name in ("step", "rows", "feed", "settings")}


def load_run(path: Path) -> dict[str, Any]:
    """What the run that wrote a checkpoint knew of itself, without reading its tensors."""
    return dict(_read(path, whole=False)["run"])


def _advising(path: Path, *, whole: bool) -> dict[str, Any]:
    """`_read`, with the checkpoint to use instead in its errors."""
    try:
        return _read(path, whole=whole)
    except FileNotFoundError as problem:
        raise FileNotFoundError(f"{problem}. {_instead(path)}") from problem
    except StateError as problem:
        raise StateError(f"{problem}. {_instead(path)}") from problem


def _read(path: Path, *, whole: bool) -> dict[str, Any]:
    """The contents; with ``whole`` every byte is read and checked, else tensors are only mapped."""
    if not path.is_file():
        what = "a directory" if path.is_dir() else "a link to nothing" if path.is_symlink() else "no such file"
        raise FileNotFoundError(f"{path}: expected a checkpoint, got {what}")
    try:
        _check_records(path, every_byte=whole)
        contents = torch.load(path, map_location="cpu", weights_only=True, mmap=not whole)
    except (zipfile.BadZipFile, pickle.UnpicklingError, EOFError, RuntimeError, ValueError) as problem:
        fault = (str(problem).splitlines() or [""])[0].rstrip(".") or type(problem).__name__
        size = path.stat().st_size
        raise StateError(f"{path}: expected a whole checkpoint, got {size:,} bytes with {fault!r}") from problem
    if not isinstance(contents, dict) or set(contents) != PARTS or contents["format"] != FORMAT:
        raise StateError(f"{path}: expected a checkpoint of `lowtide train`, got other contents")
    return contents


def _check_records(path: Path, *, every_byte: bool) -> None:
    """A torch file is a zip: its directory comes last, so a file cut short has none, and each record has a CRC."""
    with zipfile.ZipFile(path) as records:
        damaged = records.testzip() if every_byte else None
    if damaged is not None:
        raise zipfile.BadZipFile(f"a wrong checksum in {damaged}")


def _instead(path: Path) -> str:
    """The last written of the other checkpoints that can be read to its end, or the advice to start again."""
    directory = path if path.is_dir() and any(path.glob("step-*.pt")) else path.parent
    others = [other for other in directory.glob("step-*.pt") if other.is_file() and not _same(other, path)]
    for other in sorted(others, key=lambda one: (one.stat().st_mtime_ns, one.name), reverse=True):
        with contextlib.suppress(LowtideError, OSError):
            _read(other, whole=True)
            return f"Go on from a whole one: --resume {shlex.quote(str(other))}."
    return "No whole one is beside it: start again without --resume."


def _same(one: Path, other: Path) -> bool:
    return other.exists() and one.samefile(other)


def check_same(path: Path, what: str, then: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """StateError naming each value that a checkpoint and this run must share and do not."""
    differing = [name for name in then if then[name] != now.get(name)]
    if differing:
        was = ", ".join(f"{name}={then[name]}" for name in differing)
        has = ", ".join(f"{name}={now.get(name)}" for name in differing)
        raise StateError(f"{path}: expected the checkpoint's {what} ({was}), got {has}. Leave these out to resume.")


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
