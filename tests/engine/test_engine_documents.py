"""Documents of a batch, native and in NumPy: the same planes, also for odd lengths, and the same refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.engine.asked import PYTHON, native

from lowtide.engine import SOURCES, Engine, Pair, Planes, Runs, run_begins

MARK = 7


def planes_of(rows: int, length: int, room: int, fill: int = 99) -> Planes:
    shape = (rows, length)
    whole = np.full(shape, fill, np.int32), np.full(shape, fill, np.int32)
    return Planes(*whole, np.full(room + 1, fill, np.int32), np.ones(shape, np.bool_), length)


def same(one: Planes, other: Planes) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one[:4], other[:4], strict=True))


def tokens_of(seed: int, rows: int, length: int, dtype: str, share: float) -> NDArray[Any]:
    random = np.random.default_rng(seed)
    tokens = random.integers(0, 300, (rows, length + 1)).astype(dtype)
    tokens[random.random(tokens.shape) < share] = MARK
    if dtype == "int64":
        tokens[random.random(tokens.shape) < 0.1] = MARK + 2**32  # the same low half
    return tokens


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    rows=st.integers(0, 6),
    length=st.one_of(st.integers(1, 40), st.integers(41, 700)),
    dtype=st.sampled_from(["int32", "int64"]),
    share=st.sampled_from([0.0, 0.01, 0.3, 1.0]),
    begins=st.booleans(),
)
def test_both_engines_find_and_write_the_same(
    seed: int, rows: int, length: int, dtype: str, share: float, begins: bool
) -> None:
    tokens = tokens_of(seed, rows, length, dtype, share)
    x, y = np.ascontiguousarray(tokens[:, :-1]), np.ascontiguousarray(tokens[:, 1:])
    found = []
    for engine in (native(), PYTHON):
        planes = planes_of(rows, length, rows * length, fill=3 if engine is PYTHON else 4)
        found.append((engine.documents_marked(planes, x, y, MARK, begins=begins), planes))
    assert found[0][0] == found[1][0]
    assert same(found[0][1], found[1][1])


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    rows=st.integers(0, 6),
    length=st.integers(1, 90),
    share=st.sampled_from([0.0, 0.05, 0.5]),
    padded=st.booleans(),
)
def test_both_engines_write_given_runs(seed: int, rows: int, length: int, share: float, padded: bool) -> None:
    random = np.random.default_rng(seed)
    closing = np.flatnonzero(random.random(rows * length) < share)
    begins = run_begins(closing, rows * length, length)
    padding = random.random(len(begins)) < 0.3 if padded else None
    found = []
    for engine in (native(), PYTHON):
        planes = planes_of(rows, length, len(begins) + 2, fill=3 if engine is PYTHON else 4)
        found.append((engine.documents_given(planes, begins, closing, padding), planes))
    assert found[0][0] == found[1][0]
    assert same(found[0][1], found[1][1])


@settings(max_examples=100, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    rows=st.integers(0, 6),
    length=st.one_of(st.integers(1, 40), st.integers(41, 700)),
    share=st.sampled_from([0.0, 0.01, 0.3, 1.0]),
    begins=st.booleans(),
)
def test_noted_marks_give_the_documents_that_x_gives(
    seed: int, rows: int, length: int, share: float, begins: bool
) -> None:
    tokens = tokens_of(seed, rows, length, "int32", share)
    x, y = np.ascontiguousarray(tokens[:, :-1]), np.ascontiguousarray(tokens[:, 1:])
    places = np.flatnonzero(tokens.reshape(-1) == MARK)
    random = np.random.default_rng(seed)
    marks = np.concatenate(([0], random.permutation(np.concatenate((places, places[::3]))), np.full(3, -5)))
    marks[0] = len(marks) - 4
    wanted = planes_of(rows, length, rows * length)
    longest = PYTHON.documents_marked(wanted, x, y, MARK, begins=begins)
    planes = planes_of(rows, length, rows * length, fill=4)
    assert native().documents_noted(planes, marks, begins) == longest
    assert same(planes, wanted)


def test_marks_that_were_not_all_noted_or_make_no_sense_are_not_used() -> None:
    engine = native()
    for marks in ([-1, 0, 0], [3, 1, 2], [1, 18, 0], [1, -1, 0]):
        assert engine.documents_noted(planes_of(2, 8, 16), np.array(marks), False) is None
    assert engine.documents_noted(planes_of(2, 8, 16), np.array([1, 17, 0]), False) == 8


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 2**32),
    source=st.sampled_from(SOURCES),
    wide=st.sampled_from(["int32", "int64"]),
    pieces=st.booleans(),
    room=st.sampled_from([0, 5, 10_000]),
)
def test_reading_notes_where_a_mark_stands(
    tmp_path: Path, seed: int, source: str, wide: str, pieces: bool, room: int
) -> None:
    rows, length = 5, 60
    tokens = np.random.default_rng(seed).integers(5, 9, 2000).astype(source)
    path = tmp_path / f"{seed % 7}.bin"
    tokens.tofile(path)
    starts = np.random.default_rng(seed).integers(0, 1900, rows)
    lengths = np.full(rows, length + 1)
    if pieces:  # each row of two runs
        starts = np.stack((starts, starts + 20), axis=1).reshape(-1)
        lengths = np.tile([20, length - 19], rows)
    expected = np.concatenate([tokens[a : a + n] for a, n in zip(starts.tolist(), lengths.tolist(), strict=True)])
    with path.open("rb") as file:
        engine = native()
        x, y = np.empty((rows, length), wide), np.empty((rows, length), wide)
        marks = np.full(room + 1, -9)
        runs = Runs(file.fileno(), starts * tokens.itemsize, lengths * tokens.itemsize)
        assert isinstance(engine.queue("read").fill(runs, Pair(x, y, length, source, None, marks, MARK), 0), int)
        places = np.flatnonzero(expected == MARK)
        assert marks[0] == len(places) if len(places) < room else marks[0] >= room
        assert marks[1:][: len(places)].tolist() == places[:room].tolist()
        assert (marks[1 + len(places) :] == -9).all()
        with pytest.raises((TypeError, BufferError)):
            engine.queue("read").fill(runs, Pair(x, y, length, source, None, np.zeros(4, np.int32), MARK), 0)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 2**32),
    lengths=st.lists(st.integers(0, 700), min_size=1, max_size=4),
    first=st.integers(0, 9),
    dtype=st.sampled_from(SOURCES),
    share=st.sampled_from([0.0, 0.01, 1.0]),
    id=st.sampled_from([MARK, 0, -1, 255, 2**31 - 1, 2**40]),
    room=st.sampled_from([0, 1, 200, 3000]),
    mapped=st.booleans(),
)
def test_both_engines_note_the_same_ids_of_tokens_that_go_nowhere(
    tmp_path: Path,
    seed: int,
    lengths: list[int],
    first: int,
    dtype: str,
    share: float,
    id: int,
    room: int,
    mapped: bool,
) -> None:
    limits, count = np.iinfo(dtype), sum(lengths)
    tokens = tokens_of(seed, 1, count + first, dtype, share)[0, first:][:count]
    if len(tokens) and limits.min <= id <= limits.max:
        tokens[seed % len(tokens)] = id
    expected = np.flatnonzero(tokens == id)
    path = tmp_path / "tokens.bin"
    path.write_bytes(b"." * 3 + tokens.tobytes() + b".")
    sizes = np.array(lengths) * tokens.itemsize
    for engine in (native(), PYTHON):
        marks = np.full(room + 1, -9)
        target = Pair(None, None, 1, dtype, None, marks, id)
        with path.open("rb") as file:
            runs = Runs(file.fileno(), np.cumsum(sizes) - sizes + 3, sizes)
            if mapped:
                assert engine.fill_mapped(path.read_bytes(), runs, target) is None
            else:
                assert isinstance(engine.queue("read").fill(runs, target, 0), int)
        if len(expected) < room or not len(expected):
            assert marks[0] == len(expected)
        else:
            assert marks[0] >= room
        assert marks[1:][: len(expected)].tolist() == expected[:room].tolist()
        assert (marks[1 + len(expected) :] == -9).all()


def test_tokens_that_go_nowhere_need_somewhere_to_note_an_id(tmp_path: Path) -> None:
    with (tmp_path / "empty").open("w+b") as file, pytest.raises(ValueError, match="somewhere to note them"):
        native().queue("read").fill(Runs(file.fileno(), np.zeros(1, np.int64), 0), Pair(None, None, 1, "uint16"), 0)


@pytest.mark.parametrize("name", ["native", "python"])
def test_more_runs_than_there_is_room_for_are_refused(name: str) -> None:
    engine: Engine = native() if name == "native" else PYTHON
    x = np.full((2, 8), MARK, np.int64)
    with pytest.raises(ValueError, match=r"bounds: expected room for every run, got 15\."):
        engine.documents_marked(planes_of(2, 8, 15), x, x, MARK, begins=False)
    assert engine.documents_marked(planes_of(2, 8, 16), x, x, MARK, begins=False) == 1


def test_native_documents_refuse_what_would_be_written_outside() -> None:
    engine, none = native(), np.empty(0, np.int64)
    planes, x = planes_of(2, 8, 16), np.zeros((2, 8), np.int64)
    wrong: list[tuple[NDArray[Any], NDArray[Any]]] = [
        (np.array([0, 16]), none),
        (np.array([1, 8]), none),
        (np.array([0, 8, 4]), none),
        (np.array([0, 8]), np.array([16])),
        (np.array([0, 8]), np.array([-1])),
        (none, none),
    ]
    for begins, closing in wrong:
        with pytest.raises(ValueError, match="runs inside the planes"):
            engine.documents_given(planes, begins, closing, None)
    with pytest.raises(ValueError, match="as many as runs"):
        engine.documents_given(planes, np.array([0, 8]), none, np.zeros(3, np.bool_))
    with pytest.raises(ValueError, match="of the planes' size"):
        engine.documents_marked(planes, x[:1], x, MARK, begins=False)
    with pytest.raises(ValueError, match="whole rows"):
        engine.documents_marked(planes._replace(length=5), x, x, MARK, begins=False)
    with pytest.raises(ValueError, match="planes of one size"):
        engine.documents_marked(planes._replace(ids=planes.ids[:1]), x, x, MARK, begins=False)
    with pytest.raises(TypeError, match="expected an array of other integers"):
        engine.documents_given(planes, np.array([0.0, 8.0]), none, None)
    with pytest.raises(TypeError, match="expected Planes"):
        engine.documents_given(None, none, none, None)  # type: ignore[arg-type]
