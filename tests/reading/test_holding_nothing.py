"""Whatever was called before: who holds no arrays can have all that a fresh object could give."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import lowtide

ROWS, WIDTH = 65_536, 16  # 4 MiB of float32
BUDGET = 1 << 20
STEPS = 3

Call = tuple[str, int, bool]  # what is called, of which size, and whether the iterator (not its arrays) is kept
SIZES = st.sampled_from([1, 30, 400, 2000, 2048, 4000, 6000, 7600, 8000])


@pytest.fixture(scope="module")
def path(disk: Path) -> Iterator[Path]:
    found = disk / "holding.f32"
    np.arange(ROWS * WIDTH, dtype=np.float32).tofile(found)
    yield found
    found.unlink()


def forget(path: Path) -> None:
    """Out of the page cache, so that the next batches are started early and are under way when others need room."""
    number = os.open(path, os.O_RDONLY)
    os.fsync(number)
    os.posix_fadvise(number, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(number)


def made(kind: str, path: Path) -> Any:
    if kind == "tokens":
        return lowtide.open_tokens(path, dtype="uint16", budget=BUDGET)
    array = lowtide.open(path, dtype="float32", shape=(-1, WIDTH), budget=BUDGET)
    return array if kind == "array" else lowtide.together(array, np.arange(ROWS), array, budget=2 * BUDGET)


def some_of(batches: Any) -> Any:
    for _, _batch in zip(range(STEPS), batches, strict=False):
        del _batch
    return batches


def called(one: Any, call: str, size: int, which: np.ndarray[Any, Any]) -> Any:
    if isinstance(one, lowtide.Tokens):
        feeds: dict[str, Callable[[], Any]] = {
            "chunks": lambda: some_of(one.batches(size, length=32, order="sequential")),
            "gather": lambda: one[:size],
            "subset": lambda: some_of(one.split(val=0.3)[1].batches(size, length=16)),
            "shuffled": lambda: some_of(one.batches(size, length=32)),
            "local": lambda: some_of(one.batches(size, length=32, locality=("256KiB", "16KiB"))),
            "sample": lambda: some_of(one.batches(size, length=32, order="random")),
            "index": lambda: one[np.arange(size)],
        }
        return feeds[call]()
    rows: dict[str, Callable[[], Any]] = {
        "chunks": lambda: some_of(one.chunks(size)),
        "gather": lambda: some_of(one.gather(which[:size], min(size, 2000))),
        "subset": lambda: some_of(one.subset(which < size * 8).shuffled(max(1, size // 4))),
        "shuffled": lambda: some_of(one.shuffled(size, epochs=None)),
        "local": lambda: some_of(one.shuffled(size, epochs=None, locality=("256KiB", "16KiB"))),
        "sample": lambda: some_of(one.sample(size)),
        "index": lambda: one[:size],
    }
    return rows[call]()


CALLS = st.lists(
    st.tuples(
        st.sampled_from(["chunks", "gather", "subset", "shuffled", "local", "sample", "index"]), SIZES, st.booleans()
    ),
    min_size=2,
    max_size=8,
)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["array", "together", "tokens"])
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(calls=CALLS, cold=st.booleans())
def test_a_used_object_that_holds_nothing_fits_what_a_fresh_one_fits(
    path: Path, kind: str, calls: list[Call], cold: bool
) -> None:
    which = np.random.default_rng(0).permutation(ROWS)
    used, kept = made(kind, path), []
    for call, size, keep in calls:
        if cold:
            forget(path)
        with made(kind, path) as fresh:
            try:
                called(fresh, call, size, which)
            except lowtide.BudgetError:
                continue
        found = called(used, call, size, which)  # and no BudgetError
        if keep and hasattr(found, "position") and call != "subset":
            kept.append(found)
        del found
    used.close()


def test_subsets_fit_beside_what_loops_of_other_batch_sizes_left(path: Path) -> None:
    """Seen: idle buffers of the members filled the budget and the index of a subset was refused."""
    both = made("together", path)
    for size in (7600, 6000, 4000, 2000, 7600):
        some_of(both.shuffled(size))
    mask = np.zeros(ROWS, bool)
    mask[::2] = True
    assert len(both.subset(mask)) == ROWS // 2
    held = [batch for _, batch in zip(range(2), both.chunks(7600), strict=False)]
    with pytest.raises(lowtide.BudgetError):  # the negative control: what is held is not taken away
        held.extend(both.chunks(7600))
