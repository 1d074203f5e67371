"""The arrays inside one file: what each is called, and whether it can be read where it lies.

An archive is asked for its members one after the other, and only as many names are remembered as an error may show.
Costs nothing itself; the formats read their own tables.
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
    dtype: str  # as numpy calls it, or as the format does where numpy has none
    shape: tuple[int, ...]
    why_not: str = ""  # why it cannot be read in place, and what to do; empty where it can
    integers: bool = False

    @property
    def in_place(self) -> bool:
        return not self.why_not

    @property
    def like_tokens(self) -> bool:
        return self.integers and len(self.shape) == 1


def only_member(where: str, what: str, members: Iterable[ArrayMember], *, tokens: bool) -> str:
    """The name of the only member - of those that may be tokens - or FormatError with the names there are."""
    everything, fitting = _Names(), _Names()
    for member in members:
        everything.add(member.name)
        if member.like_tokens:
            fitting.add(member.name)
    wanted = fitting if tokens else everything
    if wanted.count == 1:
        return wanted.first[0]
    if tokens:
        raise FormatError(
            f"{where}: expected one {what} of integers with one axis, got {fitting.count} among {everything.count}: "
            f"{fitting if fitting.count else everything}. {_advice(fitting)}"
        )
    raise FormatError(
        f"{where}: expected the name of one {what}, got {everything.of(what)}: {everything}. {_advice(everything)}"
    )


def missing_member(where: str, what: str, tensor: str, members: Iterable[ArrayMember]) -> FormatError:
    """The error for a name that is not there: it names those that are."""
    names = _Names()
    for member in members:
        names.add(member.name)
    return FormatError(f"{where}: expected a {what} {clip(tensor)}, got {names.of(what)}: {names}. {_advice(names)}")


class _Names:
    """A count, and the first few names."""

    def __init__(self) -> None:
        self.count = 0
        self.first: list[str] = []

    def add(self, name: str) -> None:
        self.count += 1
        if len(self.first) < _MOST_LISTED:
            self.first.append(name)

    def of(self, what: str) -> str:
        return f"{self.count} {what}{'' if self.count == 1 else 's'}"

    def __str__(self) -> str:
        more = self.count - len(self.first)
        return (", ".join(clip(name, 40) for name in self.first) or "none") + (f" and {more} more" if more else "")


def _advice(names: _Names) -> str:
    if not names.count:
        return "Save the array in a file of its own with np.save."
    return f"State tensor={clip(names.first[0], 40)}{' or another of these' if names.count > 1 else ''}."
