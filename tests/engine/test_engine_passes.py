"""Passes over numbers and ids, native and in NumPy: sums of columns, checksums, ids held against a vocabulary."""

from __future__ import annotations

import os
import tempfile
import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.engine.asked import PYTHON, native

from lowtide.engine import SOURCES, ColumnSums, Engine, IdsWithin, blank_sums

NUMBERS = ["?", "u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8", ">f4", ">i2"]


def rows_of(seed: int, count: int, columns: int, dtype: str, odd: float) -> NDArray[Any]:
    random = np.random.default_rng(seed)
    kind = np.dtype(dtype)
    if kind.kind == "b":
        return random.random((count, columns)) < 0.5
    if kind.kind in "iu":
        limits = np.iinfo(kind)
        return random.integers(
            limits.min, limits.max, (count, columns), dtype=kind.newbyteorder("="), endpoint=True
        ).astype(kind)
    rows: NDArray[Any] = (
        random.standard_normal((count, columns)) * random.choice([1e-3, 1.0, 1e3]) + random.choice([0, 1e3])
    ).astype(kind)
    rows[random.random(rows.shape) < odd] = np.nan
    rows[random.random(rows.shape) < odd / 50] = random.choice([np.inf, -np.inf, 0.0, -0.0])
    if kind.itemsize == 2:
        rows[random.random(rows.shape) < odd] = np.float16(6e-8)  # the least half there is
    return rows


def summed(engine: Engine, rows: NDArray[Any], guess: NDArray[np.float64], cut: int) -> ColumnSums:
    sums = blank_sums(guess)
    for part in (rows[:cut], rows[cut:]):
        engine.add_columns(sums, part)
    return sums


@settings(max_examples=250, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    count=st.one_of(st.integers(0, 40), st.integers(41, 700)),
    columns=st.one_of(st.integers(1, 40), st.integers(41, 3000)),
    dtype=st.sampled_from(NUMBERS),
    odd=st.sampled_from([0.0, 0.0, 0.01, 0.5, 1.0]),
)
def test_both_engines_sum_columns_as_float64_arithmetic_does(
    seed: int, count: int, columns: int, dtype: str, odd: float
) -> None:
    rows = rows_of(seed, min(count, 200_000 // columns), columns, dtype, odd)
    guess = np.random.default_rng(seed).choice([0.0, 1000.0], columns)
    with np.errstate(invalid="ignore", over="ignore"):
        wide = rows.astype(np.float64)
        known = ~np.isnan(wide)
        apart = np.where(known, wide - guess, 0.0)
        total, squares, size = apart.sum(axis=0), (apart**2).sum(axis=0), np.abs(apart).sum(axis=0)
    low, high = (
        np.where(known, wide, np.inf).min(axis=0, initial=np.inf),
        np.where(known, wide, -np.inf).max(axis=0, initial=-np.inf),
    )
    for engine in (native(), PYTHON):
        found = summed(engine, rows, guess, len(rows) // 3)
        assert np.array_equal(found.nan, (~known).sum(axis=0))
        assert np.array_equal(found.low, low)
        assert np.array_equal(found.high, high)
        finite = np.isfinite(total)
        assert np.array_equal(np.isnan(found.total), np.isnan(total))
        assert np.array_equal(found.total[np.isinf(total)], total[np.isinf(total)])
        assert (np.abs(found.total[finite] - total[finite]) <= 1e-12 * size[finite]).all()
        assert np.allclose(found.squares, squares, rtol=1e-12, atol=0)


def test_equal_rows_give_equal_bits_however_wide_they_are_laid() -> None:
    rows = np.random.default_rng(0).standard_normal((999, 24)).astype(np.float32)
    guess = np.zeros(24)
    whole = summed(native(), rows, guess, 0)
    narrow = [summed(native(), np.ascontiguousarray(rows[:, k : k + 3]), guess[:3], 0) for k in range(0, 24, 3)]
    for field in ("total", "squares", "low", "high"):  # eight at a time, and the plain loop
        assert np.concatenate([getattr(one, field) for one in narrow]).tobytes() == getattr(whole, field).tobytes()


def test_sums_of_other_sizes_and_types_are_refused_and_change_nothing() -> None:
    engine, rows = native(), np.ones((4, 6), np.float32)
    good = blank_sums(np.zeros(6))
    wrong: list[tuple[ColumnSums, Any]] = [
        (good._replace(total=np.zeros(5)), rows),
        (good._replace(nan=np.zeros(6)), rows),
        (blank_sums(np.zeros(5)), rows),
        (blank_sums(np.zeros(0)), rows),
        (good, np.asfortranarray(rows)),
    ]
    for sums, given_rows in wrong:
        with pytest.raises((TypeError, ValueError, BufferError)):
            engine.add_columns(sums, given_rows)
    frozen = np.zeros(6)
    frozen.flags.writeable = False
    with pytest.raises((TypeError, ValueError, BufferError)):
        engine.add_columns(good._replace(high=frozen), rows)
    assert good.total.tolist() == [0.0] * 6
    odd = good._replace(nan=np.full(6, 3))
    engine.add_columns(odd, rows.astype(np.int32))  # counted before: no matter to whole numbers
    assert odd.total.tolist() == [4.0] * 6


@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 2**32), size=st.integers(0, 2500), cut=st.integers(0, 2500), crc=st.integers(0, 2**32 - 1))
def test_both_engines_have_the_checksum_of_zlib(seed: int, size: int, cut: int, crc: int) -> None:
    data = np.random.default_rng(seed).bytes(size)
    for engine in (native(), PYTHON):
        assert engine.crc32(data, crc) == zlib.crc32(data, crc)
        assert engine.crc32(memoryview(data)[cut:], engine.crc32(data[:cut], crc)) == zlib.crc32(data, crc)


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    count=st.one_of(st.integers(0, 40), st.integers(41, 9000)),
    dtype=st.sampled_from([*SOURCES, ">u2", "uint64"]),
    vocab=st.sampled_from([0, 1, 200, 255, 256, 50_257, 65_536, 2**31, 2**31 + 5, 2**32, 2**40]),
    wrong=st.integers(0, 2),
)
def test_both_engines_find_the_first_id_outside_and_sum_ids_of_every_type_alike(
    seed: int, count: int, dtype: str, vocab: int, wrong: int
) -> None:
    random = np.random.default_rng(seed)
    limits = np.iinfo(dtype)
    ids = random.integers(0, min(max(vocab, 1), int(limits.max)), count).astype(dtype)
    for _ in range(min(wrong, count)):
        ids[random.integers(0, count)] = (limits.min, limits.max)[random.integers(2)]
    outside = np.flatnonzero([not 0 <= one < vocab for one in ids.tolist()])
    wanted = int(outside[0]) if len(outside) else -1
    data, skip = random.bytes(int(random.integers(0, 50))) + ids.tobytes(), 0
    skip = len(data) - ids.nbytes
    with tempfile.TemporaryFile() as file:
        file.write(b"before" + data + bytes(ids.dtype.itemsize - 1))  # less than an id at the end is none
        file.flush()
        for engine in (native(), PYTHON):
            into = memoryview(bytearray(len(data) + 9))
            within = IdsWithin(np.dtype(dtype), vocab, skip)
            found = engine.read_checked(file.fileno(), 6, into, summed=True, ids=within)
            whole = data + bytes(ids.dtype.itemsize - 1)
            assert found == (len(whole), zlib.crc32(whole), wanted)
            assert into[: found.got] == whole
            assert engine.read_checked(file.fileno(), 6, into, summed=False) == (len(whole), 0, -1)
    if dtype != "uint64":
        sums = {engine.crc32_of_ids(ids, seed & 0xFFFFFFFF) for engine in (native(), PYTHON)}
        assert sums == {zlib.crc32(ids.astype("<i8").tobytes(), seed & 0xFFFFFFFF)}


def test_a_file_is_read_and_checked_over_many_pieces_and_a_failed_read_is_an_error() -> None:
    ids = np.random.default_rng(0).integers(0, 100, 1_500_001).astype(np.uint16)
    ids[[1_300_007, 1_400_000]] = 500  # not in the first piece; the first of two
    with tempfile.TemporaryFile() as file:
        file.write(ids.tobytes())
        file.flush()
        for engine in (native(), PYTHON):
            into = memoryview(bytearray(ids.nbytes + 1))
            found = engine.read_checked(file.fileno(), 0, into, summed=True, ids=IdsWithin(ids.dtype, 100))
            assert found == (ids.nbytes, zlib.crc32(ids.tobytes()), 1_300_007)
    for engine in (native(), PYTHON):
        number = os.open(".", os.O_RDONLY)
        with pytest.raises(IsADirectoryError):
            engine.read_checked(number, 0, memoryview(bytearray(8)), summed=True)
        os.close(number)


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**32), count=st.integers(0, 50), length=st.integers(1, 40), in_order=st.booleans())
def test_both_engines_copy_rows_to_their_places(seed: int, count: int, length: int, in_order: bool) -> None:
    random = np.random.default_rng(seed)
    source = random.integers(0, 256, 500, np.uint8)
    offsets = random.integers(0, 500 - length + 1, count)
    places = np.arange(count) if in_order else random.permutation(count + 3)[:count]
    wanted = np.zeros((count + 3, length), np.uint8)
    for offset, place in zip(offsets.tolist(), places.tolist(), strict=True):
        wanted[place] = source[offset : offset + length]
    for engine in (native(), PYTHON):
        into = np.zeros((count + 3) * length, np.uint8)
        engine.copy_rows(source, offsets, length, into, None if in_order else places)
        assert np.array_equal(into, wanted.reshape(-1))


def test_rows_outside_of_what_was_read_or_of_their_target_are_refused() -> None:
    source, into, one = np.zeros(10, np.uint8), np.zeros(10, np.uint8), np.array([0])
    for offsets, places in (([7], None), ([-1], None), ([0], [2]), ([0], [-1]), ([0, 0, 0], None)):
        with pytest.raises(ValueError, match="rows inside of both buffers"):
            native().copy_rows(source, np.array(offsets), 4, into, None if places is None else np.array(places))
    with pytest.raises(ValueError, match="rows inside of both buffers"):
        native().copy_rows(source, one, 0, into, None)


def unpacked(packed: bytes, room: int) -> bytes | None:
    """What LZF packed, byte by byte; None where it is damaged or more than the room."""
    found, at = bytearray(), 0
    while at < len(packed):
        control, at = packed[at], at + 1
        if control < 32:
            if at + control + 1 > len(packed):
                return None
            found += packed[at : at + control + 1]
            at += control + 1
        else:
            length, more = control >> 5, control >> 5 == 7
            if at + more + 1 > len(packed):
                return None
            length, at = length + (packed[at] if more else 0) + 2, at + more
            back, at = (control & 31) * 256 + packed[at] + 1, at + 1
            if back > len(found):
                return None
            for _ in range(length):
                found.append(found[-back])
        if len(found) > room:
            return None
    return bytes(found)


@settings(deadline=None)
@given(
    parts=st.lists(
        st.one_of(
            st.binary(min_size=1, max_size=32).map(lambda some: bytes([len(some) - 1]) + some),
            st.tuples(st.integers(1, 6), st.integers(0, 300)).map(lambda p: bytes([p[0] << 5 | p[1] >> 8, p[1] & 255])),
            st.tuples(st.integers(0, 255), st.integers(0, 99)).map(lambda p: bytes([7 << 5, *p])),
        ),
        max_size=60,
    ),
    damage=st.one_of(st.none(), st.tuples(st.integers(0, 2000), st.integers(0, 255))),
    more=st.integers(-9, 70),
)
def test_lzf_is_unpacked_as_it_was_packed_and_nothing_is_written_outside(
    parts: list[bytes], damage: tuple[int, int] | None, more: int
) -> None:
    packed = bytearray(b"\x1f" + bytes(range(32)) + b"".join(parts))
    if damage is not None:
        packed[damage[0] % len(packed)] = damage[1]
    whole = unpacked(bytes(packed), 1 << 20)
    room = max(0, (100 if whole is None else len(whole)) + more)
    into = np.full(room + 64, 0xA5, np.uint8)
    came = native().unpack_lzf(bytes(packed), into[:room])
    expected = unpacked(bytes(packed), room)
    assert came == (-1 if expected is None else len(expected))
    if expected is not None:
        assert into[: len(expected)].tobytes() == expected
    assert (into[room:] == 0xA5).all()
    assert PYTHON.unpack_lzf(bytes(packed), into) is None
