"""The arrays inside one file: what each is called, and whether it can be read where it lies.

The choice of the one that is meant, and the error that lists them, are here once for every such format.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from lowtide.errors import FormatError
from lowtide.formats.layout import clip

_MOST_LISTED = 20


@dataclass(frozen=True)
class ArrayMember:
    """One array of a file that holds several; ``tensor=`` takes its name."""

    name: str
    dtype: str  # by numpy's name, or the format's if numpy has none
    shape: tuple[int, ...]
    why_not: str = ""  # why it cannot be read in place, and what to do; empty if it can
    integers: bool = False

    @property
    def in_place(self) -> bool:
        return not self.why_not


def only_member(where: str, what: str, members: Iterable[ArrayMember], *, tokens: bool) -> str:
    """The name of the only member (that may hold tokens, if ``tokens``); FormatError lists the names otherwise."""
    found = list(members)
    everything = [member.name for member in found]
    wanted = [one.name for one in found if one.integers and len(one.shape) == 1] if tokens else everything
    if len(wanted) == 1:
        return wanted[0]
    if tokens:
        raise FormatError(
            f"{where}: expected one {what} of integers with one axis, got {len(wanted)} among {len(everything)}: "
            f"{_listed(wanted or everything)}. {_advice(wanted)}"
        )
    raise FormatError(
        f"{where}: expected the name of one {what}, got {_counted(everything, what)}: {_listed(everything)}. "
        f"{_advice(everything)}"
    )


def missing_member(where: str, what: str, tensor: str, members: Iterable[ArrayMember]) -> FormatError:
    """The error for a name that is not there: it names those that are."""
    names = [member.name for member in members]
    got = f"{_counted(names, what)}: {_listed(names)}"
    return FormatError(f"{where}: expected a {what} {clip(tensor)}, got {got}. {_advice(names)}")


def _counted(names: list[str], what: str) -> str:
    return f"{len(names)} {what}{'' if len(names) == 1 else 's'}"


def _listed(names: list[str]) -> str:
    more = len(names) - _MOST_LISTED
    shown = ", ".join(clip(name, 40) for name in names[:_MOST_LISTED]) or "none"
    return f"{shown} and {more} more" if more > 0 else shown


def _advice(names: list[str]) -> str:
    if not names:
        return "Save the array in a file of its own with np.save."
    return f"State tensor={clip(names[0], 40)}{' or another of these' if len(names) > 1 else ''}."
