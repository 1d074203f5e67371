"""The parts of a corpus: train, val and test, told apart by the names of files and directories.

    ours: train/ val/ test/ | nanoGPT: train.bin val.bin | llm.c: NAME_train_000001.bin NAME_val_000000.bin

A directory that holds several opens as its train part; which part a name belongs to is decided here and nowhere else.
Reads names only. Files that would mix parts unasked are refused by name.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lowtide.errors import FormatError
from lowtide.formats.header import is_directory

PARTS = ("train", "val", "test")
_PART_OF = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validation", "dev", "eval"), "val"),
    "test": "test",
}
_WORD = re.compile(r"[a-z]+")


def part_named(name: str) -> str | None:
    """The part that a name mentions: train in ``fineweb_train_000001.bin``; None if it mentions none or several."""
    found = {_PART_OF[word] for word in _WORD.findall(name.lower()) if word in _PART_OF}
    return found.pop() if len(found) == 1 else None


def checked_part(part: object) -> str | None:
    """``part=`` as the caller stated it."""
    if part is None or (isinstance(part, str) and part in PARTS):
        return part
    raise ValueError(f"part: expected one of {', '.join(PARTS)}, got {part!r}. State part='val'.")


def refuse_part_of_file(path: str, part: str | None) -> None:
    if part is not None:
        raise ValueError(f"part: expected a directory that holds a {part} part, got the file {path}. Leave part= out.")


def by_part(names: Sequence[str]) -> dict[str, list[str]]:
    """Names by the part they belong to, in the order of PARTS; those that belong to none under ""."""
    found: dict[str, list[str]] = {part: [] for part in (*PARTS, "")}
    for name in names:
        found[part_named(name) or ""].append(name)
    return {part: each for part, each in found.items() if each}


def part_directories(directory: Path, names: Sequence[str]) -> list[str]:
    """Of the names in a directory those of directories that are named after a part and nothing else."""
    return sorted(name for name in names if name.lower() in _PART_OF and is_directory(str(directory / name)))


@dataclass(frozen=True)
class ChosenPart:
    """The part of a directory that is meant; None, with all its names, if it does not hold several."""

    part: str | None
    names: list[str]
    others: tuple[str, ...] = ()  # parts beside it

    @property
    def notes(self) -> tuple[str, ...]:
        """A note on an opened part, so that nobody takes it for the whole."""
        if self.part is None:
            return ()
        also = f", which also holds {' and '.join(self.others)} (part={self.others[0]!r})" if self.others else ""
        return (f"the {self.part} part of this corpus{also}",)


def chosen_part(where: str, names: Sequence[str], stated: str | None) -> ChosenPart:
    """Which of the names in a directory are meant: those of the part stated, else of train, else all."""
    found = by_part(names)
    parts = [part for part in PARTS if part in found]
    if stated is None and len(parts) < 2:
        return ChosenPart(None, list(names))
    named = [part if found[part][0] == part else f"{part} ({found[part][0]})" for part in parts]
    there = " and ".join(named) or f"none ({names[0]})"
    part = stated or "train"
    if part not in found:
        way_out = f"State part={parts[0]!r}" if parts else "Leave part= out"
        raise FormatError(f"{where}: expected a {part} part, got {there}. {way_out}.")
    if "" in found:
        raise FormatError(
            f"{where}: expected only files of {' and '.join(parts)}, got {found[''][0]} beside them. "
            "Name the files to open."
        )
    return ChosenPart(part, found[part], tuple(other for other in parts if other != part))


def refuse_mixed_parts(where: str, paths: Sequence[str]) -> None:
    """FormatError if ``paths``, named together by ``where``, hold several parts; it names one file of each."""
    if len(paths) < 2:
        return
    whole = [os.path.abspath(path) for path in paths]  # noqa: PTH100 - a Path per shard would cost more
    shared = os.path.commonpath([os.path.dirname(path) for path in whole])  # noqa: PTH120
    found = by_part([os.path.relpath(path, shared) for path in whole])
    parts = [part for part in PARTS if part in found]
    if len(parts) < 2:
        return
    first, other = found[parts[0]], found[parts[1]]
    ending = Path(first[0]).suffix
    pattern = (
        first[0] if len(first) == 1 else f"*{parts[0]}*{ending}" if os.sep not in first[0] else Path(first[0]).parent
    )
    raise FormatError(
        f"{where}: expected one part of a corpus, got {' and '.join(parts)} files together ({first[0]} and "
        f"{other[0]}). Pass {Path(shared) / pattern} or {Path(shared) / other[0]}."
    )
