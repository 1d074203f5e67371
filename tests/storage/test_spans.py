"""Runs of bytes over many files, and merging neighbours: pure arithmetic, checked against the plainest way to do it."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from lowtide.storage.spans import Located, Spans, each_of, few_files, is_dense, joined, merge, placed, total_of
from lowtide.storage.watched_files import Extent

lengths = st.lists(st.integers(0, 40), min_size=1, max_size=8)


def extents_of(sizes: list[int]) -> tuple[Extent, ...]:
    """Files whose data begins at byte 100, 101, ..."""
    return tuple(Extent(f"file{k}", 100 + k, size, 100 + k + size) for k, size in enumerate(sizes))


def located_in(extents: tuple[Extent, ...]) -> Located:
    return Located(extents, np.arange(len(extents), dtype=np.int32))


def bytes_of(spans: Spans) -> list[tuple[int, int]]:
    """(file, offset) of every byte the spans name, in order."""
    return [(file, offset + k) for file, offset, length in each_of(spans) for k in range(length)]


@given(sizes=lengths, data=st.data())
def test_every_logical_byte_lies_in_exactly_one_file(sizes: list[int], data: Any) -> None:
    located = located_in(extents_of(sizes))
    places = [(file, 100 + file + k) for file, size in enumerate(sizes) for k in range(size)]
    assert located.total == len(places)
    length = data.draw(st.integers(1, max(1, located.total)))
    if located.total < length:
        return
    count = located.total // length
    numbers = np.array(data.draw(st.lists(st.integers(0, count - 1), max_size=9)), np.int64)
    spans = located.spans(numbers, length, length)
    expected = [places[number * length + k] for number in numbers.tolist() for k in range(length)]
    assert bytes_of(spans) == expected
    assert total_of(spans) == len(expected)
    assert all(length > 0 for _, _, length in each_of(spans)), "no read of nothing"


@given(sizes=lengths, most=st.integers(1, 4), data=st.data())
def test_parts_of_few_files_are_the_same_runs_in_the_same_places(sizes: list[int], most: int, data: Any) -> None:
    located = located_in(extents_of(sizes))
    if located.total == 0:
        return
    numbers = np.array(data.draw(st.lists(st.integers(0, located.total - 1), max_size=30)), np.int64)
    spans = located.spans(numbers, 1, 1)
    found: list[tuple[int, int]] = []
    for part, start in few_files(spans, most):
        assert start == len(found)
        assert len({file for file, _, _ in each_of(part)}) <= most
        found += bytes_of(part)
    assert found == bytes_of(spans)


@given(sizes=lengths, data=st.data())
def test_spans_that_were_cut_go_where_the_whole_ones_would(sizes: list[int], data: Any) -> None:
    located = located_in(extents_of(sizes))
    if located.total == 0:
        return
    starts = data.draw(st.lists(st.integers(0, located.total - 1), max_size=20))
    offsets = np.array(starts, np.int64)
    longs = np.array([data.draw(st.integers(1, located.total - start)) for start in starts], np.int64)
    places = np.cumsum(longs[::-1])[::-1] - longs  # the last one first
    spans = located.spans(offsets, 1, longs)
    target: list[Any] = [None] * int(longs.sum())
    come = iter(bytes_of(spans))
    for place, (_, _, length) in zip(placed(spans, longs, places).tolist(), each_of(spans), strict=True):
        target[place : place + length] = [next(come) for _ in range(length)]
    expected = bytes_of(located.spans(offsets[::-1], 1, longs[::-1]))
    assert target == expected


@given(
    offsets=st.lists(st.integers(0, 3000), min_size=0, max_size=60),
    length=st.integers(1, 50),
    gap=st.integers(0, 100),
    most=st.integers(50, 400),
)
def test_merged_reads_bring_every_run_and_stay_within_their_round(
    offsets: list[int], length: int, gap: int, most: int
) -> None:
    disk = np.arange(4000, dtype=np.int64)
    wanted = np.array(offsets, np.int64)
    rounds = merge(wanted, length, gap=gap, most=most)
    if rounds is None:
        return
    seen = []
    for turn in rounds:
        assert int(turn.lengths.sum()) <= 2 * most
        read = np.concatenate([disk[a : a + n] for a, n in zip(turn.starts, turn.lengths, strict=True)])
        for run, place in zip(turn.numbers.tolist(), turn.inside.tolist(), strict=True):
            assert np.array_equal(read[place : place + length], disk[wanted[run] : wanted[run] + length])
            seen.append(run)
    assert sorted(seen) == list(range(len(offsets)))
    assert 4 * sum(len(turn.starts) for turn in rounds) <= 4 * len(offsets)


def test_neighbours_are_merged_and_strangers_are_not() -> None:
    near = np.arange(0, 6400, 64)
    rounds = merge(near, 64, gap=0, most=1 << 20)
    assert rounds is not None
    assert [len(turn.starts) for turn in rounds] == [1]
    assert merge(np.arange(0, 10**9, 10**6), 64, gap=4096, most=1 << 20) is None
    assert merge(near, 1 << 20, gap=0, most=1 << 20) is None, "long runs gain nothing"


def test_offsets_beyond_32_bits_stay_exact() -> None:
    extents = (Extent("a", 128, 5 << 40, (5 << 40) + 128), Extent("b", 0, 3 << 40, 3 << 40))
    spans = located_in(extents).spans(np.array([(5 << 40) // 8 - 1, (5 << 40) // 8, 2**30]), 8, 8)
    assert [file for file, _, _ in each_of(spans)] == [0, 1, 0]
    assert [offset for _, offset, _ in each_of(spans)] == [(5 << 40) + 120, 0, 2**33 + 128]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 30), max_size=60), st.integers(1, 9), st.integers(0, 20))
def test_joined_runs_are_the_same_bytes_in_the_same_order(chosen: list[int], stride: int, least: int) -> None:
    numbers = np.array(chosen, np.int64)
    found = joined(numbers, stride, least)
    if found is None:
        runs = 1 + int(np.count_nonzero(np.diff(numbers) != 1))
        assert len(numbers) <= runs or len(numbers) * stride < least * runs
        return
    firsts, step, lengths = found
    assert len(firsts) < len(numbers)
    read = [
        first * step + k for first, length in zip(firsts.tolist(), lengths.tolist(), strict=True) for k in range(length)
    ]
    assert read == [number * stride + k for number in chosen for k in range(stride)]


def test_only_growing_numbers_with_small_gaps_are_dense() -> None:
    half = np.flatnonzero(np.random.default_rng(0).random(1000) < 0.5)
    assert is_dense(half, 100, 400)
    assert not is_dense(half, 1000, 400), "gaps of two rows on average"
    assert not is_dense(half[::-1], 100, 400)
    assert not is_dense(np.repeat(half, 2), 100, 400), "a row twice"
    assert not is_dense(np.arange(10), 100, 400), "nothing between them"
    assert not is_dense(np.array([5]), 100, 400)
