"""Documents of a batch in Python: positions, ids, bounds and mask beside x and y.

A batch is a list of runs - consecutive tokens of one document inside one row, or padding - and every plane follows from
where runs begin. The C core writes all planes in one pass; here each is a few calls of NumPy. Reads nothing.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lowtide.engine.runs import Numbers, bad_value

AT_ONCE = 1 << 17  # tokens whose runs are spread at a time: NumPy's temporaries stay in the second-level cache


class Planes(NamedTuple):
    """Where a batch's documents go: arrays of rows x ``length`` tokens, and the bounds of runs."""

    positions: Any  # int32
    ids: Any  # int32
    bounds: Any  # int32, one-dimensional: cu_seqlens
    mask: Any  # bool
    length: int


def documents_marked(planes: Planes, x: NDArray[Any], y: NDArray[Any], id: int, begins: bool) -> int:
    """Write documents that end with ``id`` (or begin with it) into the planes; returns tokens of the longest run."""
    length = planes.length
    marked = np.flatnonzero(x == id)
    if begins:
        marked = marked[marked % length != 0]
        ends = (y[:, -1] == id).nonzero()[0] * length + length - 1
        closing = np.concatenate((marked - 1, ends))
    else:
        closing = marked
    return documents_given(planes, run_begins(closing, x.size, length), closing, None)


def documents_noted(planes: Planes, marks: NDArray[np.int64], begins: bool) -> None:
    """The same from what reading noted: nothing, as only the C core notes while it reads."""


def documents_given(planes: Planes, begins: Numbers, closing: Numbers, padding: NDArray[np.bool_] | None) -> int:
    """The same from where runs begin (ascending; every row begins one) and last tokens of documents."""
    positions, ids, mask = (np.asarray(plane).reshape(-1) for plane in (planes.positions, planes.ids, planes.mask))
    bounds = planes.bounds
    if len(begins) >= len(bounds) and mask.size:
        raise bad_value("bounds", "room for every run", len(bounds) - 1)
    bounds[: len(begins)] = begins
    bounds[len(begins) :] = mask.size
    lengths = bounds[1 : len(begins) + 1] - bounds[: len(begins)]
    numbers = np.arange(len(begins)) if padding is None else np.where(padding, -1, (~padding).cumsum() - 1)
    step = max(1, AT_ONCE // planes.length) * planes.length  # whole rows, and every row begins a run
    for first in range(0, mask.size, step):
        last = min(first + step, mask.size)
        some = slice(*begins.searchsorted((first, last)))
        ids[first:last] = numbers[some].repeat(lengths[some])
        positions[first:last] = np.arange(first, last) - begins[some].repeat(lengths[some])
    mask.fill(True)
    mask[closing] = False
    if padding is not None:
        padded = spread(begins[padding], lengths[padding])
        positions[padded] = 0
        mask[padded] = False
    return int(lengths.max(initial=0))


def packed_close(
    x: NDArray[Any],
    y: NDArray[Any],
    begins: Numbers,
    closing: Numbers,
    padding: NDArray[np.bool_] | None,
    pad: int,
    eot: int | None,
) -> int:
    """Pad over surplus tokens, and in y after documents; returns the first that does not end with eot, or -1."""
    flat_x, flat_y = x.reshape(-1), y.reshape(-1)
    flat_y[closing] = pad
    if padding is not None:
        padded = spread(begins[padding], np.append(begins[1:], x.size)[padding] - begins[padding])
        flat_x[padded] = flat_y[padded] = pad
    wrong = np.empty(0, np.intp) if eot is None else np.flatnonzero(flat_x[closing] != eot)
    return int(wrong[0]) if len(wrong) else -1


def run_begins(closing: Numbers, size: int, length: int) -> Numbers:
    """Where runs begin: with every row, and after every last token of a document inside one."""
    inner = closing + 1
    inner = inner[inner % length != 0]  # after a row's last token the next row begins anyway
    begins = np.concatenate((np.arange(0, size, length), inner))
    begins.sort()
    return begins


def spread(begins: Numbers, lengths: NDArray[Any]) -> Numbers:
    """Every position of the stretches ``[begin, begin + length)``."""
    found: Numbers = (begins - lengths.cumsum() + lengths).repeat(lengths)
    found += np.arange(len(found))
    return found
