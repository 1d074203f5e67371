"""The checkpoints of an out directory: which branch they are of, which one to go on from, which may go.

One idea: a run that goes on from the newest checkpoint of a branch extends that branch; one that goes on from anywhere
else starts a branch of its own, ``step-00000038-2.pt`` beside ``step-00000040.pt``. So a branch only ever grows, no
save can replace another run's, and pruning looks at its own branch alone. ``latest.pt`` links to the last save,
``best.pt`` to the one with the lowest val loss.

What stays: the newest ``keep`` of the branch, what ``latest.pt`` and ``best.pt`` name, and what any run came from.
Costs one look at the directory per save. It reads no tensors.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lowtide.errors import LowtideError
from lowtide.train import checkpoint

NAME = re.compile(r"step-(\d{8,})(?:-(\d+))?\.pt")
LATEST, BEST = "latest.pt", "best.pt"


def saved(directory: Path) -> list[Path]:
    """The checkpoints of a directory, branch by branch, oldest first."""
    if not directory.is_dir():
        return []
    return sorted((path for path in directory.iterdir() if NAME.fullmatch(path.name)), key=lambda path: _place(path))


def _place(path: Path) -> tuple[int, int]:
    match = NAME.fullmatch(path.name)
    return (int(match[2] or 1), int(match[1])) if match else (1, -1)


def branch_of(path: Path) -> int:
    return _place(path)[0]


def newest(directory: Path) -> Path:
    """The checkpoint to go on from: the newest of the branch that ``latest.pt`` names."""
    found = saved(directory)
    link = directory / LATEST
    if link.is_symlink():  # also one that dangles: its name says which branch
        named = link.readlink()
        of_branch = [path for path in found if branch_of(path) == branch_of(named)]
        if NAME.fullmatch(named.name) and of_branch:
            return of_branch[-1]
    elif link.is_file():  # a copy made by a tool that follows links
        return link
    if not found:
        raise FileNotFoundError(f"{directory}: expected a checkpoint to resume from, got none. Start without --resume.")
    return max(found, key=_written)


def _written(path: Path) -> tuple[int, tuple[int, int]]:
    with contextlib.suppress(OSError):
        return path.stat().st_mtime_ns, _place(path)
    return 0, _place(path)


def best(directory: Path) -> Path:
    """The checkpoint with the lowest val loss, or the newest where none was named."""
    link = directory / BEST
    return link.resolve() if link.is_file() else newest(directory)


@dataclass(frozen=True)
class Branch:
    """Where one run saves."""

    directory: Path
    number: int = 1
    lineage: tuple[str, ...] = ()  # the checkpoints at which this branch and its forebears left another one
    kept: frozenset[str] = frozenset()  # what this run and every other branch came from

    def save(self, contents: Mapping[str, Any], keep: int, *, is_best: bool = False) -> Path:
        """Write one checkpoint, name it the latest (and the best), then let the oldest of this branch go."""
        suffix = f"-{self.number}" if self.number > 1 else ""
        path = self.directory / f"step-{contents['step']:08d}{suffix}.pt"
        past = {**contents["run"], "file": path.name, "lineage": list(self.lineage)}
        checkpoint.write(path, {**contents, "run": past}, beside=saved(self.directory))
        for link in (LATEST, BEST) if is_best else (LATEST,):
            _point(self.directory / link, path.name)
        self._prune(keep)
        return path

    def _prune(self, keep: int) -> None:
        named = {link.readlink().name for name in (LATEST, BEST) if (link := self.directory / name).is_symlink()}
        mine = [path for path in saved(self.directory) if branch_of(path) == self.number]
        for old in mine[:-keep]:
            if old.name not in named | self.kept:
                with contextlib.suppress(OSError):  # a directory of that name is not ours to remove
                    old.unlink()


def continued(directory: Path, resumed: Path, past: Mapping[str, Any]) -> Branch:
    """The branch of a run that goes on from ``resumed``, whose memory of itself is ``past``."""
    found = saved(directory)
    lineage = tuple(past.get("lineage", ()))
    came_from = past.get("file", resumed.name)
    here = resumed.parent.resolve() == directory.resolve() and NAME.fullmatch(came_from) is not None
    number = branch_of(Path(came_from))
    if not (here and [path.name for path in found if branch_of(path) == number][-1:] == [came_from]):
        number = 1 + max(map(branch_of, found), default=0)
        lineage += (came_from,) if here else (str(resumed.resolve()),)
    return Branch(directory, number, lineage, frozenset({came_from, *lineage, *_origins(found)}))


def _origins(found: list[Path]) -> set[str]:
    """What the branches of a directory came from, as their newest whole checkpoints say."""
    origins: set[str] = set()
    known: set[int] = set()
    for path in reversed(found):
        if branch_of(path) not in known:
            with contextlib.suppress(LowtideError, OSError):
                origins.update(checkpoint.load_run(path).get("lineage", ()))
                known.add(branch_of(path))
    return origins


def tidy(directory: Path) -> None:
    """Remove what a killed writer left behind."""
    for pattern in (".step-*.tmp", f".{LATEST}.*", f".{BEST}.*", ".weights.safetensors.*.tmp", ".train.png.*.tmp"):
        for temporary in directory.glob(pattern):
            temporary.unlink(missing_ok=True)


def set_aside(directory: Path, also: tuple[str, ...] = ()) -> Path | None:
    """Move an earlier run's checkpoints out of a new run's way, into a directory of their own; nothing is deleted."""
    found = saved(directory)
    if not found:
        return None
    number = 1
    while (aside := directory / f"earlier-{number}").exists():
        number += 1
    aside.mkdir()
    others = [path for name in also if (path := directory / name).exists()]
    for path in (*found, *others):
        path.rename(aside / path.name)
    for name in (LATEST, BEST):
        link = directory / name
        if link.is_symlink() or link.exists():
            link.rename(aside / name)
    return aside


def _point(link: Path, name: str) -> None:
    """A link that is always there and always whole; a file system without links goes by the files' times."""
    temporary = link.with_name(f".{link.name}.{os.getpid()}")
    with contextlib.suppress(OSError):
        temporary.unlink(missing_ok=True)
        temporary.symlink_to(name)
        temporary.replace(link)
