"""Documents of a batch in Python: positions, ids, bounds and mask beside x and y, as the C core writes them; and ids.

A batch is a list of runs - consecutive tokens of one document inside one row, or padding - and every plane follows from
where runs begin. The C core writes all planes in one pass; here each is a few calls of NumPy. Costs about a quarter
of a nanosecond per byte written, and one byte per token while ids are compared. Reads nothing.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lowtide.engine.runs import Numbers, bad_value

AT_ONCE = 1 << 17  # tokens whose runs are spread at a time: what NumPy makes between stays in the second-level cache
FEW = 4  # rows per run that begins inside a row, from which on such runs are written one by one


class Planes(NamedTuple):
    """Where a batch's documents go: arrays of rows x ``length`` tokens, and the bounds of runs."""

    positions: Any  # int32
    ids: Any  # int32
    bounds: Any  # int32, one-dimensional: cu_seqlens
    mask: Any  # bool
    length: int


RunsOfBatch = tuple[Numbers, Numbers, NDArray[np.bool_] | None]  # begins, closing, padding


def documents_marked(planes: Planes, x: NDArray[Any], y: NDArray[Any], id: int, begins: bool) -> int:
    """Documents that end with ``id`` (or begin with it), written into the planes; tokens of the longest run."""
    length = planes.length
    marked = few_true((x == id).reshape(-1))
    if begins:
        marked = marked[marked % length != 0]
        ends = (y[:, -1] == id).nonzero()[0] * length + length - 1
        closing = np.concatenate((marked - 1, ends))
    else:
        closing = marked
    return documents_given(planes, run_begins(closing, x.size, length), closing, None)


def documents_noted(planes: Planes, marks: Numbers, begins: bool) -> int | None:
    """The same from where the id stands among rows of ``length + 1`` tokens: a count, and places in any order, perhaps
    twice. None: there were more than places, or none were noted at all."""
    length, many = planes.length, int(marks[0])
    size = np.asarray(planes.mask).size
    places = np.array(sorted(set(marks[1 : many + 1].tolist())), np.int64)  # a copy: they may lie where the planes are
    if not 0 <= many < len(marks) or (len(places) and not 0 <= places[0] <= places[-1] < size // length * (length + 1)):
        return None
    rows, columns = np.divmod(places, length + 1)
    closing = rows * length + columns - begins
    closing = closing[columns > 0] if begins else closing[columns < length]
    return documents_given(planes, run_begins(closing, size, length), closing, None)


def documents_given(planes: Planes, begins: Numbers, closing: Numbers, padding: NDArray[np.bool_] | None) -> int:
    """The same from where runs begin (ascending; every row begins one) and last tokens of documents."""
    length = planes.length
    positions, ids, mask = (np.asarray(plane).reshape(-1, length) for plane in (planes[0], planes[1], planes[3]))
    bounds = planes.bounds
    if len(begins) >= len(bounds) and mask.size:
        raise bad_value("bounds", "room for every run", len(bounds) - 1)
    bounds[: len(begins)] = begins
    bounds[len(begins) :] = mask.size
    lengths = bounds[1 : len(begins) + 1] - bounds[: len(begins)]
    if (len(begins) - len(mask)) * FEW <= len(mask):
        _by_rows(begins, _numbers(begins, padding), lengths, positions, ids)
    else:
        _by_runs(begins, _numbers(begins, padding), lengths, positions.reshape(-1), ids.reshape(-1), length)
    mask.fill(True)
    mask.reshape(-1)[closing] = False
    if padding is not None:
        padded = spread(begins[padding], lengths[padding])
        positions.reshape(-1)[padded] = 0
        mask.reshape(-1)[padded] = False
    return int(lengths.max(initial=0))


def packed_close(x: NDArray[Any], y: NDArray[Any], runs: RunsOfBatch, pad: int, eot: int | None) -> int:
    """Padding over what was read too much, and in y behind documents; the first that does not end with eot, or -1."""
    begins, closing, padding = runs
    flat_x, flat_y = x.reshape(-1), y.reshape(-1)
    flat_y[closing] = pad
    if padding is not None:
        padded = spread(begins[padding], np.append(begins[1:], x.size)[padding] - begins[padding])
        flat_x[padded] = flat_y[padded] = pad
    wrong = np.empty(0, np.intp) if eot is None else np.flatnonzero(flat_x[closing] != eot)
    return int(wrong[0]) if len(wrong) else -1


def find_ids(tokens: NDArray[Any], id: int, found: Numbers, start: int) -> tuple[int, int]:
    """Where ``id`` stands from ``start`` on, as many as ``found`` has room for: how many, and where to go on."""
    limits = np.iinfo(tokens.dtype)
    if not limits.min <= id <= limits.max:
        return 0, len(tokens)
    marked = few_true(tokens[start:] == tokens.dtype.type(id)) + start
    many = min(len(marked), len(found))
    found[:many] = marked[:many]
    if many < len(found):
        return many, len(tokens)
    return many, int(marked[many - 1]) + 1 if many else start


def run_begins(closing: Numbers, size: int, length: int) -> Numbers:
    """Where runs begin: with every row, and behind every last token of a document inside one."""
    inner = closing + 1
    inner = inner[inner % length != 0]  # behind a row's last token its next row begins anyway
    begins = np.concatenate((np.arange(0, size, length), inner))
    begins.sort()
    return begins


def spread(begins: Numbers, lengths: NDArray[Any]) -> Numbers:
    """Every position of the stretches ``[begin, begin + length)``."""
    found: Numbers = (begins - lengths.cumsum() + lengths).repeat(lengths)
    found += np.arange(len(found))
    return found


def few_true(hits: NDArray[np.bool_]) -> Numbers:
    """Like np.flatnonzero, four times faster where hits are few: eight at a time are looked at first."""
    whole = len(hits) // 8 * 8
    words = hits[:whole].view(np.uint64).nonzero()[0]
    rows, columns = hits[:whole].reshape(-1, 8)[words].nonzero()
    found: Any = words[rows] * 8 + columns
    return found if whole == len(hits) else np.concatenate((found, np.flatnonzero(hits[whole:]) + whole))


def _numbers(begins: Numbers, padding: NDArray[np.bool_] | None) -> NDArray[np.int32]:
    """The id of every run: documents count from 0, padding is -1."""
    if padding is None:
        return np.arange(len(begins), dtype=np.int32)
    found = (~padding).cumsum(dtype=np.int32)
    found -= 1
    found[padding] = -1
    return found


def _by_rows(
    begins: Numbers,
    numbers: NDArray[np.int32],
    lengths: NDArray[np.int32],
    positions: NDArray[np.int32],
    ids: NDArray[np.int32],
) -> None:
    """Where most rows are one run: rows first, then the few runs that begin inside one."""
    length = positions.shape[1]
    counting = _counting(length)
    positions[:] = counting
    ids[:] = numbers[begins.searchsorted(np.arange(0, positions.size, length)), None]
    flat_positions, flat_ids = positions.reshape(-1), ids.reshape(-1)
    for run in (begins % length).nonzero()[0].tolist():
        first, size = int(begins[run]), int(lengths[run])
        flat_positions[first : first + size] = counting[:size]
        flat_ids[first : first + size] = numbers[run]


def _by_runs(
    begins: Numbers,
    numbers: NDArray[np.int32],
    lengths: NDArray[np.int32],
    positions: NDArray[np.int32],
    ids: NDArray[np.int32],
    length: int,
) -> None:
    """Every run spread over its tokens, some rows at a time."""
    step = max(1, AT_ONCE // length) * length
    for first in range(0, len(ids), step):
        last = min(first + step, len(ids))
        some = slice(*begins.searchsorted((first, last)))
        ids[first:last] = numbers[some].repeat(lengths[some])
        starts = (begins[some] - first).astype(np.int32).repeat(lengths[some])
        np.subtract(_counting(last - first), starts, out=positions[first:last])


@lru_cache(maxsize=2)
def _counting(size: int) -> NDArray[np.int32]:
    found = np.arange(size, dtype=np.int32)
    found.flags.writeable = False
    return found
