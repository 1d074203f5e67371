"""Decodes a column of ids: once from its beginning to its end when it is first opened, later by piece. In the maker.

    PLACE/survey.json: ids of each piece, as many as its file's own table says and as there are | ends.bin: int64

A piece is a row group or a record batch. Neighbouring pieces of at least 1 MiB are a *unit*, which begins at a block of
its own, so that no block needs two of them. The first pass checks every id, writes where documents end, and keeps what
it decodes as blocks while they take less than half of the disk; two units are decoded at a time. Costs about 30 MiB of
memory while decoding.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lowtide.blocks.block_file import BLOCK
from lowtide.blocks.filling import Filling
from lowtide.errors import FormatError, ReadError
from lowtide.formats.columns.id_columns import MOST_IDS, IdBlock, IdColumn
from lowtide.formats.columns.unit_order import MOST_ENDS, UnitOrder
from lowtide.formats.files.decoded_rows import LEAST_UNIT, as_text, blocks_for, identity_of
from lowtide.formats.object_bytes import bytes_of
from lowtide.storage.own_files import OwnDirectory, seal, wait_for_lock

THREADS = 2  # that decode in the first pass
_AT_ONCE = 8 * BLOCK  # bytes written as one; 32 took 12 MiB more of the maker and no less time

Write = Callable[[int, Any], None]


@dataclass(frozen=True)
class Survey:
    """What a column holds: for each piece how many ids its file promises at most, and how many there are."""

    promised: list[int]
    counts: list[int]
    documents: int


def surveyed(**about: Any) -> Callable[[], dict[str, Any]]:
    """Tokens, documents, bytes of the block file, and where its units lie: offsets in it, ends among the ids."""
    return ColumnIds(**about).described  # built while the environment is that of who asks


class ColumnIds:
    """The block file of a column."""

    def __init__(
        self,
        path: str,
        kind: str,
        source: Any,
        column: str,
        identity: Any,
        dtype: str,
        place: str,
        disk: int | None,
    ) -> None:
        self._column = IdColumn(path, kind, column, bytes_of(path, source))
        self._identity, self._dtype = identity, np.dtype(dtype)
        self._place, self._disk = place, disk
        self._turn = threading.Lock()
        self._survey: Survey | None = None
        self._at: tuple[int, int, Iterator[npt.NDArray[Any]]] | None = None  # unit, byte of it, what comes then

    def described(self) -> dict[str, Any]:
        with self._turn:
            survey = self._surveyed()
            counts = np.array(survey.counts, np.int64)
            ends = np.add.reduceat(counts, self._firsts).cumsum() if len(counts) else counts
            units = as_text(self._offsets[:-1], ends * self._dtype.itemsize)
            size = int(self._offsets[-1])
            return {"tokens": int(counts.sum()), "documents": survey.documents, "size": size, "units": units}

    def covering(self, first: int, last: int) -> tuple[int, int]:
        """The bytes of all units that these bytes touch."""
        if self._survey is None:
            return first, last
        low = int(np.searchsorted(self._offsets, first, side="right")) - 1
        return int(self._offsets[low]), int(self._offsets[np.searchsorted(self._offsets, last)])

    def make(self, offset: int, length: int, write: Write) -> None:
        """The bytes at ``offset`` of the block file, in order, to ``write``."""
        with self._turn:
            self._surveyed()
            end = offset + length
            while offset < end:
                unit = int(np.searchsorted(self._offsets, offset, side="right")) - 1
                stop = min(end, int(self._offsets[unit + 1]))
                for data in self._bytes_of(unit, offset - int(self._offsets[unit]), stop - offset):
                    write(offset, data)
                    offset += len(data)

    def _bytes_of(self, unit: int, first: int, length: int) -> Iterator[npt.NDArray[np.uint8]]:
        """Bytes of a unit; a unit that is asked for from its beginning to its end is decoded once."""
        at = self._at
        if at is None or at[0] != unit or at[1] > first:
            at = unit, 0, self._decoded(unit)
        _, position, coming = at
        self._at = None
        while length:
            data = next(coming, None)
            if data is None:  # behind the last id
                data = np.zeros(first + length - position, np.uint8)
            skip = min(len(data), max(0, first - position))
            part = data[skip : skip + length]
            position, first, length = position + skip + len(part), first + len(part), length - len(part)
            if len(part):
                yield part
            rest = data[skip + len(part) :]
            if len(rest) and not length:
                coming = _before(rest, coming)
        self._at = unit, position, coming

    def _decoded(self, unit: int) -> Iterator[npt.NDArray[np.uint8]]:
        self._refuse_changed()
        firsts = self._firsts
        last = firsts[unit + 1] if unit + 1 < len(firsts) else len(self._surveyed().counts)
        for block in self._column.blocks(range(firsts[unit], last)):
            yield self._column.stored(block, self._dtype, 0).view(np.uint8)

    def _refuse_changed(self) -> None:
        if self._identity is not None and identity_of("file", self._column.path) != self._identity:
            path = self._column.path
            raise ReadError(
                f"{path}: expected the file that was opened, got it changed meanwhile. Open it again.",
                path=path,
                offset=0,
            )

    # The first pass

    def _surveyed(self) -> Survey:
        if self._survey is None:
            place = OwnDirectory(self._place)
            with contextlib.closing(place.open("lock", os.O_RDWR | os.O_CREAT)) as lock:
                wait_for_lock(lock.number)
                survey = _read(place)
                if survey is None:
                    promised = self._column.promised()
                    self._lay_out(promised)
                    survey = self._pass(place, promised)
            self._lay_out(survey.promised)
            self._survey = survey
        return self._survey

    def _lay_out(self, promised: list[int]) -> None:
        """Which piece each unit begins with, and where units lie in the block file."""
        self._firsts, offsets, held = [], [0], 0
        for piece, count in enumerate(promised):
            if not held:
                self._firsts.append(piece)
            held += max(1, count * self._dtype.itemsize)
            if held >= LEAST_UNIT or piece == len(promised) - 1:
                offsets.append(offsets[-1] + blocks_for(held))
                held = 0
        self._offsets = np.array(offsets, np.int64)

    def _pass(self, place: OwnDirectory, promised: list[int]) -> Survey:
        """Every id once: checked, counted, and kept as blocks where there is room."""
        self._refuse_changed()
        kept = Filling(self._place, int(self._offsets[-1]), self._disk)
        with place.write("ends.bin") as ends:
            order = UnitOrder(ends, len(promised))
            step = THREADS if self._column.in_any_order else 1
            threads = [
                threading.Thread(target=self._decode, args=(k, step, order, kept, promised)) for k in range(step)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self._column.give_back()
            if order.failed is not None:
                raise order.failed
        self._refuse_changed()
        survey = Survey(promised, order.counts, order.documents)
        with place.write("survey.json") as file:
            file.write(json.dumps({**vars(survey), "seal": _sealed(place, survey)}).encode())
        return survey

    def _decode(self, first: int, step: int, order: UnitOrder, kept: Filling, promised: list[int]) -> None:
        """Every ``step``-th unit from ``first`` on."""
        behind = [*self._firsts[1:], len(promised)]
        units = range(first, len(self._firsts), step)
        unit = first
        buffer = np.empty(_AT_ONCE + MOST_IDS * self._dtype.itemsize, np.uint8)  # numpy copies beside other threads
        try:
            blocks = self._column.blocks([one for unit in units for one in range(self._firsts[unit], behind[unit])])
            block = next(blocks, None)
            for unit in units:
                at, held, ends, ids = int(self._offsets[unit]), 0, [], 0
                while block is not None and block.piece < behind[unit]:
                    data = self._checked(unit, block, ids, order).view(np.uint8)
                    buffer[held : held + len(data)] = data
                    held += len(data)
                    order.counts[block.piece] += block.ids.size
                    if order.counts[block.piece] > promised[block.piece]:
                        raise self._column.damaged(f"more than the {promised[block.piece]} ids of piece {block.piece}")
                    if held >= _AT_ONCE:
                        whole = held // BLOCK * BLOCK
                        kept.write(at, buffer[:whole])
                        buffer[: held - whole] = buffer[whole:held]
                        at, held = at + whole, held - whole
                    ends.append(block.ends + ids)
                    ids += block.ids.size
                    if sum(map(len, ends)) > MOST_ENDS:
                        order.write(unit, ends)
                        ends = []
                    block = next(blocks, None)
                while at < self._offsets[unit + 1]:
                    size = min(_AT_ONCE, int(self._offsets[unit + 1]) - at)
                    buffer[held:size] = 0  # behind the last id
                    kept.write(at, buffer[:size])
                    at, held = at + size, 0
                order.write(unit, ends)
                order.pass_on(ids)
        except Exception as problem:
            order.fail(unit, problem)

    def _checked(self, unit: int, block: IdBlock, ids: int, order: UnitOrder) -> npt.NDArray[Any]:
        """The ids as they are stored."""
        try:
            return self._column.stored(block, self._dtype, 0)
        except FormatError:  # names where an id stands, which is known once those of the units before are counted
            return self._column.stored(block, self._dtype, order.take(unit) + ids)


def _before(first: Any, rest: Iterator[Any]) -> Iterator[Any]:
    yield first
    yield from rest


def _sealed(place: OwnDirectory, survey: Survey) -> str:
    return seal("survey", [place.path.name, survey.promised, survey.counts, survey.documents])


def _read(place: OwnDirectory) -> Survey | None:
    """What an earlier pass found; None where there was none, or somebody damaged it."""
    try:
        with place.open("survey.json") as file:
            said = json.loads(os.pread(file.number, file.status.st_size, 0))
        survey = Survey(said["promised"], said["counts"], said["documents"])
        with place.open("ends.bin") as ends:
            whole = ends.status.st_size == 8 * survey.documents
        return survey if whole and said["seal"] == _sealed(place, survey) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
