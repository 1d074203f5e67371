"""What ``a[key]`` means: which rows to read, and what NumPy then does with them.

Only the first axis decides what is read. So a key is split into the rows it names and a *rest* key which, applied by
NumPy to just those rows, gives exactly what NumPy would give on the whole array. Pure; reads nothing.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from lowtide.arguments import array_of
from lowtide.engine import Numbers

ONE_AXIS = "Use a list of row numbers"


@dataclass(frozen=True)
class Selection:
    """Rows to read - consecutive ones as a range, others as numbers - and the key to apply to them (None: none).

    ``divides``: applied to some of the rows, the key gives just their part of the result, so a large selection can be
    read some rows at a time.
    """

    rows: range | Numbers
    rest: tuple[Any, ...] | None
    divides: bool = False

    def rest_of(self, first: int, last: int) -> tuple[Any, ...]:
        """The key for rows ``[first, last)`` of the selection alone."""
        assert self.rest is not None
        head = self.rest[0]
        if not isinstance(head, np.ndarray):
            return self.rest
        if head.dtype == bool:
            return (head[first:last], *self.rest[1:])
        others = [part[first:last] if _varies(part, len(head)) else part for part in self.rest[1:]]
        return (np.arange(last - first), *others)

    def length(self) -> int:
        """How long the result's first axis is."""
        head = self.rest[0] if self.rest else None
        return int(np.count_nonzero(head)) if isinstance(head, np.ndarray) and head.dtype == bool else len(self.rows)


def _is_mask(part: Any) -> bool:
    return isinstance(part, np.ndarray) and part.dtype == bool


def _varies(part: Any, rows: int) -> bool:
    """An index with a value for each row."""
    return isinstance(part, np.ndarray) and part.ndim == 1 and len(part) == rows > 1


def _divides(rest: tuple[Any, ...] | None, shape: tuple[int, ...], rows: int) -> bool:
    """Whether rows stay the first axis of the result, tried on one row and on two."""
    if rest is None or rows < 2 or rest[0] is None:
        return False
    head = rest[0]
    if _is_mask(head):
        return len(rest) == 1
    if isinstance(head, np.ndarray) and (
        head.ndim != 1 or not all(_varies(part, rows) or not _advanced((part,)) or np.ndim(part) == 0 for part in rest)
    ):
        return False
    shapes = []
    for count in (1, 2):
        sample = np.broadcast_to(np.empty((), np.uint8), (count, *shape[1:]))
        parts = (part[:count] if _varies(part, rows) else part for part in rest)
        shapes.append(np.shape(sample[tuple(parts)]))
    one, two = shapes
    return len(one) > 0 and one[1:] == two[1:] and (one[0], two[0]) == (1, 2)


def select(key: Any, shape: tuple[int, ...], item: str = "row") -> Selection:
    """Split ``key``; IndexError with both numbers if it points outside. ``item``: what errors call a row."""
    found = _selected(key, shape, item)
    return replace(found, divides=_divides(found.rest, shape, len(found.rows)))


def _selected(key: Any, shape: tuple[int, ...], item: str) -> Selection:
    first, rest = _split(key, len(shape))
    count = shape[0]
    if isinstance(first, slice):
        rows = range(*first.indices(count))
        return Selection(rows if rows.step == 1 else numbers_of(rows), (slice(None), *rest) if rest else None)
    if first is Ellipsis or first is None:  # nothing said about the first axis: all rows, then the whole key
        return Selection(range(count), (first, *rest))
    if _is_integer(first, item):
        number = row_inside(operator.index(first), count, item)
        return Selection(range(number, number + 1), (0, *rest))
    return _select_array(array_of("index", first, ONE_AXIS), rest, shape, item)


def _split(key: Any, axes: int) -> tuple[Any, tuple[Any, ...]]:
    if not isinstance(key, tuple):
        return key, ()
    if len(key) == 0:
        return slice(None), ()
    named = sum(_axes(part) for part in key)
    if named > axes:
        raise IndexError(f"index: expected at most {axes} axes, got {named}. Leave out the last ones.")
    if key[0] is Ellipsis and named == axes and len(key) > 1:
        # It stands for no axis, but turns one item into an array, so it moves after the named axes.
        return key[1], (*key[2:], Ellipsis)
    return key[0], key[1:]


def _axes(part: Any) -> int:
    if part is None or part is Ellipsis:
        return 0
    if isinstance(part, (list, np.ndarray)) and np.asarray(part).dtype == bool:
        return max(np.asarray(part).ndim, 1)
    return 1


def _is_integer(part: Any, item: str) -> bool:
    if isinstance(part, (bool, np.bool_)):
        raise IndexError(
            f"index: expected a {item}'s number, a slice or a mask of {item}s, got a single bool. Use a[5]."
        )
    return isinstance(part, (int, np.integer)) or (
        isinstance(part, np.ndarray) and part.ndim == 0 and part.dtype != bool
    )


def row_inside(number: int, count: int, item: str = "row") -> int:
    """``number`` counted from the first of ``count`` rows; IndexError if there is no such row."""
    if not -count <= number < count:
        raise IndexError(
            f"index: expected a {item} from {-count} to {count - 1}, got {number}. There are {count} {item}s."
        )
    return number % count


def _select_array(first: np.ndarray[Any, Any], rest: tuple[Any, ...], shape: tuple[int, ...], item: str) -> Selection:
    if first.size == 0 and first.dtype == float:  # a[[]]: an empty list has no dtype of its own
        first = first.astype(np.int64)
    if first.dtype == bool:
        return _select_mask(first, rest, shape)
    numbers = inside(first, shape[0], item).reshape(-1)
    if first.ndim == 1 and not rest:
        return Selection(numbers, None)
    return Selection(numbers, (np.arange(first.size).reshape(first.shape), *rest))


def _select_mask(mask: np.ndarray[Any, Any], rest: tuple[Any, ...], shape: tuple[int, ...]) -> Selection:
    if mask.shape != shape[: mask.ndim]:
        raise IndexError(
            f"mask: expected shape {shape[: mask.ndim]}, got {mask.shape}. Make it as long as the array's first axes."
        )
    named = mask.any(axis=tuple(range(1, mask.ndim)))
    numbers = np.flatnonzero(named).astype(np.int64)
    if mask.ndim == 1:
        return Selection(numbers, (slice(None), *rest) if not _advanced(rest) else (np.arange(len(numbers)), *rest))
    return Selection(numbers, (mask[named], *rest))


def _advanced(rest: tuple[Any, ...]) -> bool:
    return any(not (part is None or part is Ellipsis or isinstance(part, slice)) for part in rest)


def inside(numbers: np.ndarray[Any, Any], count: int, item: str = "row") -> Numbers:
    """Row numbers as non-negative int64, or an error that names the first one outside."""
    if numbers.dtype.kind not in "iu":
        way = "Convert with .astype('int64')" if numbers.ndim and numbers.dtype.kind == "f" else "Use whole numbers"
        raise IndexError(f"index: expected integers or a mask of {item}s, got {numbers.dtype}. {way}.")
    wrong = (numbers < -count) | (numbers >= count)
    if wrong.any():
        row_inside(int(numbers[wrong].reshape(-1)[0]), count, item)
    whole = numbers.astype(np.int64)
    return np.where(whole < 0, whole + count, whole)


def ends_inside(rows: range, count: int) -> None:
    """IndexError if a range reaches outside ``count`` rows: its ends say it of all."""
    for end in (rows[0], rows[-1]) if rows else ():
        row_inside(end, count)


def refuse_axes(call: str, wanted: NDArray[Any], count: int) -> None:
    """Refuse row numbers or masks with more than one axis."""
    if wanted.ndim == 1:
        return
    if wanted.dtype.kind not in "iub":
        way = ONE_AXIS
    elif wanted.ndim == 0:
        way = f"Use {call}([{wanted}])"
    elif wanted.dtype == bool:
        axes = 1 if wanted.ndim == 2 else tuple(range(1, wanted.ndim))
        way = f"Say when a row counts: mask.any(axis={axes}), or mask.all(axis={axes})"
    else:
        way = "Use rows.reshape(-1)"
    what = f"a mask with one value for each of {count} rows" if wanted.dtype == bool else "one axis of row numbers"
    raise ValueError(f"{call}: expected {what}, got shape {wanted.shape}. {way}.")


def refuse_name(name: str, names: Sequence[str], rows: str, item: str = "row") -> None:
    """The error for a name instead of rows: perhaps of a field, or of an array read together with others."""
    way = f"Use one of {', '.join(names)} on rows that were read" if names else f"Use numbers; {item}s have no names"
    if name in names:
        way = f"Read rows first: {rows}[{name!r}]"
    raise IndexError(
        f"index: expected a {item}'s number, a slice, {item} numbers or a mask, got the name {name!r}. {way}."
    )


def whole(held: Any, dtype: DTypeLike | None, copy: bool | None) -> NDArray[Any]:
    """What ``np.asarray(held)`` is: one read that the budget must allow. Without it NumPy would ask row by row."""
    if copy is False:
        raise ValueError("np.asarray: expected copy=None or True, got False: reading from disk copies. Leave it out.")
    rows: NDArray[Any] = held[:]
    return rows if dtype is None else rows.astype(dtype, copy=False)


def numbers_of(rows: range) -> Numbers:
    return np.arange(rows.start, rows.stop, rows.step, dtype=np.int64)
