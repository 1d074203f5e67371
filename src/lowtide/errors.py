"""The errors Lowtide raises, as one small tree.

    LowtideError
    ├── FormatError   (also ValueError)   the bytes are not what a format says they must be
    ├── StateError    (also ValueError)   a saved state belongs to other data or other settings
    ├── ReadError     (also OSError)      the disk or the file failed after opening
    ├── WriteError    (also OSError)      the disk refused a write
    └── BudgetError   (also MemoryError)  what was asked for does not fit the budget

Wrong arguments stay TypeError, ValueError and IndexError; a missing file stays FileNotFoundError. Every
message has the same shape: ``{where}: expected {what}, got {what}. {The one thing to do}.``
"""

from __future__ import annotations

import re
from functools import partial

# A name and a password in front of a host, and the query of a web address: up to its end, or a weight behind it.
_USER = re.compile(r"(\b(?:[a-z][a-z0-9+.-]*://|https?:/))[^\s/@\"']*@", re.IGNORECASE)
_QUERY = re.compile(
    r"(\bhttps?:/{1,2}[^\s?#,;\"']*)[?#][^\s,;\"']*?(?=:?(?:$|[\s,;\"'])|:[0-9.]+(?:$|[,;]))", re.IGNORECASE
)


def discreet(text: str) -> str:
    """Text without what may be secret in the addresses in it: for everything that is shown or kept."""
    return _QUERY.sub(r"\1", _USER.sub(r"\1", text)) if ":/" in text else text


class LowtideError(Exception):
    """Anything that Lowtide itself refuses or cannot do: the one to catch.

    >>> try: lowtide.open("features.npy", budget="64KiB").shuffled(4096)
    ... except lowtide.LowtideError as problem: print(problem)
    """

    def __init__(self, message: str = "", *others: object) -> None:
        super().__init__(discreet(message) if isinstance(message, str) else message, *others)


class FormatError(LowtideError, ValueError):
    """A file's bytes contradict its header, its name or what was stated about it."""


class StateError(LowtideError, ValueError):
    """A saved position belongs to other data or to settings that give another order."""


class ReadError(LowtideError, OSError):
    """A read failed, came back short, or the file changed under an open store.

    Carries ``path`` and ``offset`` (the byte where the failed read began), for programs that retry elsewhere.
    """

    def __init__(self, message: str, *, path: str, offset: int, errno: int | None = None) -> None:
        super().__init__(message)
        self.path = path
        self.offset = offset
        self.errno = errno

    def __str__(self) -> str:
        return str(self.args[0])

    def __reduce__(self) -> tuple[object, ...]:
        return partial(ReadError, path=self.path, offset=self.offset, errno=self.errno), self.args


class WriteError(LowtideError, OSError):
    """The disk was full or failed while something was written.

    Carries ``path``, ``wanted`` (bytes, None if unknown) and ``free`` (bytes left on that disk, None if unknown).
    """

    def __init__(
        self, message: str, *, path: str, wanted: int | None, free: int | None, errno: int | None, strerror: str = ""
    ) -> None:
        super().__init__(message)
        self.path, self.wanted, self.free = path, wanted, free
        self.errno, self.strerror = errno, strerror

    def __str__(self) -> str:
        return str(self.args[0])

    def __reduce__(self) -> tuple[object, ...]:
        told = {name: getattr(self, name) for name in ("path", "wanted", "free", "errno", "strerror")}
        return partial(WriteError, **told), self.args


class BudgetError(LowtideError, MemoryError):
    """What was asked for cannot be held inside the budget; the message names the number to change."""
