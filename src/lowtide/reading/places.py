"""Where a row of a batch came from: what ``feed.where(step)`` gives."""

from __future__ import annotations

from typing import NamedTuple


class DocumentPlace(NamedTuple):
    """Where a document, or the piece of it in a row, begins, and how many tokens it has there."""

    file: str
    offset: int
    tokens: int


class Place(NamedTuple):
    """Where a row begins: the file and the byte in it (as in ``np.fromfile(file, offset=offset)``)."""

    file: str
    offset: int
    corpus: str | None = None  # its name in a mixture
    documents: tuple[DocumentPlace, ...] = ()  # of a packed row
