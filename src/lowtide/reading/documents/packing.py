"""Whole documents into rows of one length: best fit decreasing, group by group.

Documents are cut into pieces of at most ``length`` tokens. Neighbouring pieces form groups of 4 Mi tokens or 65,536
pieces, and each group is packed by itself: largest first, each piece into the fullest row that still has room. The
result depends on the documents and the length alone, needs no more memory than one group, and a stopped build
continues. Rows are numbered through all groups and a row's pieces are neighbours, so one search finds any row.

Costs 6 bytes per piece and 4 per row on disk (about 8 MB per million documents of 300 tokens at length 1,024) and about
a microsecond per piece, once. Reading holds 56 bytes per group, and the tables if they fit the budget; else the
parts that a batch needs are read, in two calls. Does not look at tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lowtide.engine import Numbers, PackedTables, RowPieces, pieces_of
from lowtide.reading.documents.boundaries import Marks
from lowtide.reading.documents.boundary_index import BoundaryIndex, Progress, boundary_index, identity_of, key_of
from lowtide.reading.documents.kept_arrays import GrowingArrays, HeldArrays, KeptArrays, KeptFile, damaged, kept
from lowtide.reading.token_range import TokenRange
from lowtide.storage.store import Store

GROUP_TOKENS = 4 << 20
GROUP_PIECES = 65_536
PIECES = 65_536  # pieces made at a time
WRITTEN = 16  # groups packed before they are written

# The ledger's entry for a group.
FIRST, LAST, ROWS, COUNT, PADDED, RUNS, MOST = range(7)
ENTRY = 7
LOW = 2**32 - 1  # only the low half of the number of pieces before a row is kept: its group tells the rest


class Pieces(NamedTuple):
    """First token of each piece, its tokens, and whether its document continues after it."""

    starts: Numbers
    sizes: Numbers
    goes_on: NDArray[np.bool_]

    def some(self, first: int, last: int | None) -> Pieces:
        which = slice(first, last)
        return Pieces(self.starts[which], self.sizes[which], self.goes_on[which])


def arrays_of(length: int) -> dict[str, str]:
    """The arrays of a packing: the ledger of groups first. ``sizes``: tokens, plus one if a document continues."""
    return {"groups": "<i8", "rows": "<u4", "starts": "<u4", "sizes": "<u2" if length < 65_535 else "<u4"}


def cut_documents(index: BoundaryIndex, first: int, last: int, length: int) -> Iterator[Pieces]:
    """The documents of tokens ``[first, last)`` in pieces, in order, a bounded number at a time."""
    for ends in index.blocks(first, last):
        begins = np.concatenate(([first], ends[:-1]))
        first = int(ends[-1])
        upto = np.cumsum(-(-(ends - begins) // length))
        for some in range(0, int(upto[-1]), PIECES):
            numbers = np.arange(some, min(some + PIECES, int(upto[-1])), dtype=np.int64)
            document = np.searchsorted(upto, numbers, side="right")
            earlier = numbers - np.where(document > 0, upto[document - 1], 0)
            starts = begins[document] + earlier * length
            left = ends[document] - starts
            yield Pieces(starts, np.minimum(left, length), left > length)


def groups_of(pieces: Iterator[Pieces]) -> Iterator[Pieces]:
    """The same pieces, group by group."""
    held = Pieces(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.bool_))
    for more in pieces:
        held = Pieces(*(np.concatenate(both) for both in zip(held, more, strict=True)))
        while True:
            full = np.searchsorted(np.cumsum(held.sizes), GROUP_TOKENS) + 1  # including the piece that fills it
            size = min(int(full), GROUP_PIECES)
            if size > len(held.starts):
                break
            yield held.some(0, size)
            held = held.some(size, None)
    if len(held.starts):
        yield held


def best_fit(sizes: Numbers, length: int) -> tuple[Numbers, Numbers]:
    """Best fit decreasing: the pieces in the order of their rows, and how many pieces each row has.

    Of equal pieces the earlier comes first, of equally full rows the one last used: every machine packs the same.
    """
    order = np.argsort(-sizes, kind="stable")
    sorted_sizes = sizes[order]
    large = int(np.searchsorted(-sorted_sizes, -(length // 2)))  # no two of these share a row
    rows = np.empty(len(order), np.int64)
    rows[:large] = np.arange(large)
    by_room: dict[int, list[int]] = {}  # room left -> rows with exactly that much
    for row, room in enumerate((length - sorted_sizes[:large]).tolist()):
        if room:
            by_room.setdefault(room, []).append(row)
    # Bit r is set while a row has room r: the fullest row with enough room is the lowest bit from a size upwards.
    rooms = sum(1 << room for room in by_room)
    count = large
    placed = []
    for size in sorted_sizes[large:].tolist():
        fitting = rooms >> size
        if fitting:
            room = size + (fitting & -fitting).bit_length() - 1
            same = by_room[room]
            row = same.pop()
            if not same:
                rooms ^= 1 << room
        else:
            row, room = count, length
            count += 1
        placed.append(row)
        left = room - size
        if left:
            same = by_room.setdefault(left, [])
            if not same:
                rooms |= 1 << left
            same.append(row)
    rows[large:] = placed
    together = np.argsort(rows, kind="stable")
    return order[together], np.bincount(rows, minlength=count)


class Packer:
    """Writes the packing of tokens ``[first, last)``."""

    def __init__(self, index: BoundaryIndex, first: int, last: int, length: int, progress: Progress = None) -> None:
        self.index, self.first, self.last, self.length, self.progress = index, first, last, length, progress
        self._pieces = 0  # written so far

    def run(self, growing: GrowingArrays, identity: dict[str, Any]) -> None:
        entries = growing.entries()
        entries = entries[: len(entries) // ENTRY * ENTRY].reshape(-1, ENTRY)
        rows, count = int(entries[:, ROWS].sum()), int(entries[:, COUNT].sum())
        if not growing.keep({"groups": entries.size, "rows": rows, "starts": count, "sizes": count}):
            entries, count = entries[:0], 0
        self._pieces = count
        done = int(entries[-1, LAST]) if len(entries) else self.first
        waiting: list[tuple[Numbers, ...]] = []
        # A group ends with a piece, so the rest of a document is cut from there just as from its beginning.
        for group in groups_of(cut_documents(self.index, done, self.last, self.length)) if done < self.last else ():
            waiting.append(self._packed(group))
            if len(waiting) == WRITTEN:
                done = self._write(growing, waiting)
                waiting = []
        if waiting:
            self._write(growing, waiting)
        self._finish(growing, identity)

    def _packed(self, group: Pieces) -> tuple[Numbers, ...]:
        order, counts = best_fit(group.sizes, self.length)
        begins = np.cumsum(counts) - counts
        sizes = group.sizes[order]
        room = self.length - np.add.reduceat(sizes, begins)
        first = int(group.starts[0])
        last = int(group.starts[-1] + group.sizes[-1])
        runs = int((counts + (room > 0)).max())
        entry = np.array([first, last, len(counts), len(order), int(room.sum()), runs, int(counts.max())], np.int64)
        return entry, counts, group.starts[order] - first, sizes + group.goes_on[order]

    def _write(self, growing: GrowingArrays, waiting: list[tuple[Numbers, ...]]) -> int:
        groups, counts, starts, sizes = (np.concatenate(each) for each in zip(*waiting, strict=True))
        rows = self._pieces + counts.cumsum() - counts
        self._pieces += len(starts)
        growing.append(groups=groups, rows=rows & LOW, starts=starts, sizes=sizes)
        done = int(groups.reshape(-1, ENTRY)[-1, LAST])
        if self.progress is not None:
            self.progress(done - self.first, self.last - self.first)
        return done

    def _finish(self, growing: GrowingArrays, identity: dict[str, Any]) -> None:
        growing.append(rows=np.array([self._pieces & LOW]))  # after the last row
        entries = growing.entries().reshape(-1, ENTRY)
        facts = {
            "tokens": self.last - self.first,
            "rows": int(entries[:, ROWS].sum()),
            "pieces": int(entries[:, COUNT].sum()),
            "padded": int(entries[:, PADDED].sum()),
            "most_runs": int(entries[:, RUNS].max(initial=1)),  # padding is a run
            "most_documents": int(entries[:, MOST].max(initial=0)),
        }
        growing.finish(identity, facts, {})


class PackedRows:
    """Rows of ``length`` tokens."""

    def __init__(self, found: KeptArrays, length: int, store: Store) -> None:
        self.kept = found
        self.length = length
        self._store = store
        facts = found.facts
        self.tokens, self.pieces = int(facts["tokens"]), int(facts["pieces"])
        self.padded, self.most_runs = int(facts["padded"]), int(facts["most_runs"])
        self.most_documents = int(facts["most_documents"])
        self._rows, self._starts, self._sizes = (found.arrays[name] for name in ("rows", "starts", "sizes"))
        self.held = HeldArrays((self._rows, self._starts, self._sizes), store.budget)
        groups = found.arrays["groups"].part().reshape(-1, ENTRY)
        self._first = groups[:, FIRST].copy()
        zero = np.zeros(1, np.int64)
        self._row_bounds = np.concatenate((zero, np.cumsum(groups[:, ROWS])))
        self._piece_bounds = np.concatenate((zero, np.cumsum(groups[:, COUNT])))
        if int(self._row_bounds[-1]) + 1 != len(self._rows) or int(self._piece_bounds[-1]) != len(self._starts):
            raise damaged(
                found.path, f"{len(self._rows) - 1} rows of {len(self._starts)} pieces", "other counts in its groups"
            )

    def __len__(self) -> int:
        return len(self._rows) - 1

    def tables(
        self, rows: Numbers, item: int, there: int, needs: Callable[[int], int] = lambda _: 0
    ) -> tuple[PackedTables, Numbers]:
        """For the engine: tables that hold these rows, and the rows' numbers in them. Tokens have ``item`` bytes, and
        the corpus has ``there`` of them; ``needs``: bytes of the budget that batches of so many rows need."""
        found = self.held.made(self._tables, item, there)
        if found is None and self.held.get(partial(needs, len(rows))) is not None:
            found = self.held.made(self._tables, item, there)
        return self._read(rows, item, there) if found is None else (found, rows)

    def _tables(
        self, rows: NDArray[Any], starts: NDArray[Any], sizes: NDArray[Any], item: int, there: int
    ) -> PackedTables:
        bounds = self._row_bounds, self._piece_bounds, self._first
        found = PackedTables(rows, starts, sizes, *bounds, self.length, item, there)
        return found._replace(held=self._store.engine.hold_tables(found))

    def _read(self, rows: Numbers, item: int, there: int) -> tuple[PackedTables, Numbers]:
        """The same with tables of these rows alone, each a group of its own."""
        count, engine, kept = len(rows), self._store.engine, self.kept
        found = kept.read_runs(*self._rows.runs(rows, np.full(count, 2)), engine).view(np.uint32).reshape(count, 2)
        many = (found[:, 1] - found[:, 0]).astype(np.int64)  # unsigned: right even if the low half wrapped
        group = self._row_bounds.searchsorted(rows, side="right") - 1
        before = self._piece_bounds[group]
        first: Numbers = before + (found[:, 0] - before.astype(np.uint32)).astype(np.int64)
        if (many > self.length).any() or (first + many > len(self._starts)).any():
            raise ValueError(f"rows: expected at most {self.length} pieces, got {int(many.max())}. Pack again.")
        (starts, some), (sizes, others) = self._starts.runs(first, many), self._sizes.runs(first, many)
        pieces = kept.read_runs(np.concatenate((starts, sizes)), np.concatenate((some, others)), engine)
        upto = np.concatenate((np.zeros(1, np.int64), many.cumsum()))
        numbers = np.arange(count + 1)
        middle = int(some.sum())
        arrays = upto.astype(np.uint32), pieces[:middle].view(self._starts.kind), pieces[middle:].view(self._sizes.kind)
        bounds = numbers, upto, self._first[group]
        return PackedTables(*arrays, *bounds, self.length, item, there), numbers[:-1]

    def pieces_of(self, rows: Numbers) -> RowPieces:
        """The pieces of these rows."""
        return pieces_of(*self.tables(rows, 1, self.tokens))

    def __reduce__(self) -> tuple[Any, ...]:
        return PackedRows, (self.kept, self.length, self._store)


def packed_rows(tokens: TokenRange, marks: Marks, length: int, progress: Progress = None) -> PackedRows:
    """The packing of these tokens at this length, made if there is none yet."""
    corpus = identity_of(TokenRange(tokens.layout, tokens.store), marks)
    identity = {**corpus, "length": length, "range": [tokens.first, tokens.last]}
    name = f"packed-{length}-{key_of(identity)}.rows"
    index = boundary_index(tokens, marks, progress)
    packer = Packer(index, tokens.first, tokens.last, length, progress)
    what = KeptFile(name, identity, tokens.layout.extents[0].path)
    return PackedRows(kept(what, arrays_of(length), partial(packer.run, identity=identity)), length, tokens.store)
