"""A cut: rows of x and y laid over tokens - which tokens are row k, and how rows are read.

One idea: a feed counts rows and a cut knows what they are. ``StrideCut`` lays windows of ``length + 1`` tokens at
stride ``length`` over one corpus, in the order of a stream. Other cuts pack documents or mix corpora; feeds do not
know which one they have.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, runtime_checkable

from lowtide.machine import PAGE
from lowtide.reading.plan import Plan, project
from lowtide.reading.prefetch import prepared_ahead
from lowtide.reading.run_ahead import Announcer
from lowtide.reading.streams import Stream
from lowtide.reading.upcoming import Numbers
from lowtide.reading.window_filler import WindowFiller
from lowtide.storage import Store
from lowtide.storage.budget import whole_pages
from lowtide.units import format_size


class DocumentPlace(NamedTuple):
    """Where a document, or the piece of one that stands in a row, begins, and how many tokens it has there."""

    file: str
    offset: int
    tokens: int


class Place(NamedTuple):
    """Where a row begins: the file and the byte in it (as in ``np.fromfile(file, offset=offset)``)."""

    file: str
    offset: int
    corpus: str | None = None  # its name in a mixture
    documents: tuple[DocumentPlace, ...] = ()  # of a packed row


@runtime_checkable
class Scheduled(Protocol):
    """A cut whose later rows may be planned otherwise than when a state was saved: a mixture."""

    def past(self, rows: int) -> dict[str, Any]:
        """What fixed the order of the rows before this one, safe for JSON."""
        ...

    def check_past(self, past: Any, rows: int) -> None:
        """StateError unless these rows would come in the same order again."""
        ...


class Cut(Protocol):
    """What a feed reads. One with ``runs`` is told of rows to come (``run_ahead.py``)."""

    @property
    def length(self) -> int:
        """Tokens per row."""
        ...

    @property
    def rows(self) -> int | None:
        """Rows of a finite order; None: endless."""
        ...

    @property
    def tail(self) -> int:
        """Tokens of one shorter row that a finite order ends with; 0: none."""
        ...

    @property
    def order(self) -> str: ...
    @property
    def stores(self) -> tuple[Store, ...]: ...
    @property
    def where(self) -> str: ...

    def numbers(self, rows: Numbers) -> Numbers:
        """What ``read`` wants, for rows of the stream."""
        ...

    def read(
        self, numbers: Numbers, *, rows: int, ahead: Callable[[], Numbers] | None = None, tail: bool = False
    ) -> Any:
        """The batch of these rows, lent. ``rows``: how many a batch usually has; ``tail``: it is the shorter row."""
        ...

    def places(self, numbers: Numbers) -> list[Place]: ...
    def settings(self) -> dict[str, Any]:
        """What fixes the order beside the data, safe for JSON."""
        ...

    def fingerprint(self) -> dict[str, Any]: ...
    def plan(self, rows: int) -> Plan: ...


class StrideCut:
    """Windows at stride ``length`` of one range of tokens, in the order of ``stream``."""

    def __init__(self, windows: WindowFiller, stream: Stream, runs: Announcer | None = None) -> None:
        self.tokens = windows.tokens
        self.runs = runs  # of a local shuffle
        self._windows = windows
        self._stream = stream
        self.length = windows.length
        self.rows = stream.rows
        self.order = stream.order
        self.stores = (self.tokens.store,)
        self.where = self.tokens.store.where
        self.tail = 0 if stream.rows is None else max(0, len(self.tokens) - 1 - stream.rows * self.length)

    def numbers(self, rows: Numbers) -> Numbers:
        """First tokens, counted from the corpus's beginning."""
        return self._stream.starts(rows) + self.tokens.first

    def read(
        self, numbers: Numbers, *, rows: int, ahead: Callable[[], Numbers] | None = None, tail: bool = False
    ) -> Any:
        windows = self.shorter() if tail else self._windows
        return windows.read(numbers, rows=rows, ahead=ahead)

    def shorter(self) -> WindowFiller:
        """For the one shorter row that a finite order ends with."""
        return WindowFiller(self.tokens, self.tail, self._windows.dtype)

    def places(self, numbers: Numbers) -> list[Place]:
        return [Place(*self.tokens.place(int(start))) for start in numbers]

    def settings(self) -> dict[str, Any]:
        return {"length": self.length, **self._stream.settings()}

    def fingerprint(self) -> dict[str, Any]:
        return self.tokens.fingerprint()

    def plan(self, rows: int) -> Plan:
        size, scratch = self._windows.nbytes(rows)
        window = (self.length + 1) * self.tokens.dtype.itemsize + 2 * PAGE
        why = f"batches of {format_size(size)}, one held and one being filled, widened from {format_size(scratch)}"
        prepared, staging = prepared_ahead(self.tokens.store)
        if prepared:
            why += f"; {prepared} more are prepared in advance while data is cold, where the budget has room"
        held = (2 + prepared) * size + whole_pages(scratch) + staging
        plan = project(self.tokens.store, held, announced=2 * rows * window, why=(why,))
        return plan if self.runs is None else self.runs.adjusted(plan)
