"""Both engines fill the same bytes, by every way of reading, cached or not, as NumPy has them."""

from __future__ import annotations

import os
import tracemalloc
from collections.abc import Iterator
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.engine.asked import (
    PYTHON,
    aligned,
    blank_pair,
    expected,
    forget,
    int64,
    native,
    noise,
    opened,
    random_runs,
    require,
)

from lowtide import machine
from lowtide.engine import (
    DROP,
    DROP_SEQUENTIAL,
    KEEP,
    KEEP_NEAR,
    KEEP_SEQUENTIAL,
    SOURCES,
    WAYS,
    Engine,
    Pair,
    Problem,
    Runs,
    WatchedFiles,
)

SIZE = 1 << 20
# way, through O_DIRECT: every combination that has a meaning
ROUTES = [(way, direct) for way in WAYS for direct in (False, True) if direct <= (way in ("aio", "uring"))]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("native") / "noise.dat"
    noise(path, SIZE)
    return path


@pytest.fixture(scope="module")
def content(file: Path) -> bytes:
    return file.read_bytes()


@pytest.fixture(scope="module")
def fds(file: Path) -> Iterator[tuple[int, int]]:
    with opened(file) as fd, opened(file, direct=True) as direct:
        yield fd, direct


def queue_of(engine: Engine, way: str, **settings: int) -> Any:
    if engine.name == "native":
        require(way)
    return engine.queue(way, **settings)


def engines(way: str) -> list[Engine]:
    return [native()] + ([PYTHON] if way in ("read", "announce") else [])


@pytest.mark.parametrize(("way", "direct"), ROUTES)
@pytest.mark.parametrize("cold", [False, True])
def test_gather_gives_the_bytes_of_the_file(
    way: str, direct: bool, cold: bool, content: bytes, fds: tuple[int, int]
) -> None:
    runs = random_runs(fds[0], SIZE, 200, 3001, direct=fds[1] if direct else None)
    for engine in engines(way):
        queue = queue_of(engine, way, depth=16)
        for turn in range(3):
            if cold:
                forget(fds[0])
            into = np.zeros(200 * 3001, np.uint8)
            assert isinstance(queue.fill(runs, into, KEEP), int)
            assert into.tobytes() == expected(content, runs), f"{engine.name}, turn {turn}"


@pytest.mark.parametrize(("way", "direct"), ROUTES)
def test_long_runs_pass_through_small_staging(way: str, direct: bool, content: bytes, fds: tuple[int, int]) -> None:
    runs = Runs(fds[0], int64(1, 100_001, 5), int64(700_000, 900_000, 3), None, fds[1] if direct else None)
    for engine in engines(way):
        queue = queue_of(engine, way, depth=8, staging=8 * (4096 + 2 * 4096))
        forget(fds[0])
        into = np.zeros(1_600_003, np.uint8)
        assert isinstance(queue.fill(runs, into, KEEP), int)
        assert into.tobytes() == expected(content, runs)


@pytest.mark.parametrize(("way", "direct"), ROUTES)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_windows_are_what_numpy_makes_of_them(
    way: str, direct: bool, content: bytes, fds: tuple[int, int], data: st.DataObject
) -> None:
    source = data.draw(st.sampled_from(SOURCES))
    wide = data.draw(st.sampled_from(["int32", "int64"]))
    length, rows = data.draw(st.integers(1, 300)), data.draw(st.integers(0, 40))
    vocab = data.draw(st.one_of(st.none(), st.sampled_from([1, 200, 256, 60_000, 65_536, 2**31, 2**32, 2**62])))
    item = np.dtype(source).itemsize
    offsets = np.array(data.draw(st.lists(st.integers(0, SIZE - 301 * 8), min_size=rows, max_size=rows)), np.int64)
    runs = Runs(fds[0], offsets, (length + 1) * item, None, fds[1] if direct else None)
    if data.draw(st.booleans()):
        forget(fds[0])
    narrow = np.array([np.frombuffer(content, source, length + 1, int(offset)) for offset in offsets], source).reshape(
        rows, length + 1
    )
    limit = np.iinfo(wide)
    wider = narrow.astype(object)
    bad = (wider > limit.max) | (wider < limit.min)
    if vocab is not None:
        bad |= (wider >= vocab) | (wider < 0)
    problem = None
    if bad.any():
        row, column = divmod(int(np.argmax(bad)), length + 1)
        problem = ("token", row, column * item, int(narrow[row, column]))
    for engine in engines(way):
        x, y = np.zeros((rows, length), wide), np.zeros((rows, length), wide)
        found = queue_of(engine, way, depth=16).fill(runs, Pair(x, y, length, source, vocab), KEEP)
        assert (None if isinstance(found, int) else found) == problem, engine.name
        if problem is None:
            assert np.array_equal(x, narrow[:, :-1]) and np.array_equal(y, narrow[:, 1:]), engine.name


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_window_may_come_in_pieces_from_several_files(
    content: bytes, fds: tuple[int, int], data: st.DataObject
) -> None:
    length, rows = data.draw(st.integers(1, 50)), data.draw(st.integers(1, 10))
    cuts = [sorted(data.draw(st.sets(st.integers(1, length), max_size=3))) for _ in range(rows)]
    offsets, lengths = [], []
    for row in range(rows):
        bounds = [0, *cuts[row], length + 1]
        for first, last in pairwise(bounds):
            offsets.append(data.draw(st.integers(0, 1000)))
            lengths.append(2 * (last - first))
    runs = Runs(np.full(len(offsets), fds[0], np.int32), int64(*offsets), int64(*lengths))
    tokens = np.frombuffer(expected(content, runs), "uint16")
    narrow = tokens.reshape(rows, length + 1)
    order = np.random.default_rng(len(offsets)).permutation(len(offsets))
    targets = (np.cumsum(runs.lengths) - runs.lengths) // 2
    mixed = Runs(runs.fds, runs.offsets[order], runs.lengths[order], targets[order])
    for engine, way in product((native(), PYTHON), ("read", "announce")):
        for asked in (runs, mixed):
            x, y = np.zeros((2, rows, length), "int64")
            assert isinstance(engine.queue(way).fill(asked, Pair(x, y, length, "uint16", None), KEEP), int)
            assert np.array_equal(x, narrow[:, :-1]) and np.array_equal(y, narrow[:, 1:])
    vocab = data.draw(st.integers(1, int(tokens.max())))  # one id or more is refused
    for asked, places in ((runs, targets), (mixed, targets[order])):
        bad = [
            np.flatnonzero(tokens[at : at + size // 2] >= vocab) for at, size in zip(places, asked.lengths, strict=True)
        ]
        run = next(run for run, found in enumerate(bad) if len(found))
        problem = "token", run, 2 * int(bad[run][0]), int(tokens[places[run] + bad[run][0]])
        for engine, way in product((native(), PYTHON), ("read", "announce")):
            x, y = np.zeros((2, rows, length), "int64")
            found = engine.queue(way).fill(asked, Pair(x, y, length, "uint16", vocab), KEEP)
            assert found == problem, engine.name


@settings(max_examples=60, deadline=None)
@given(
    source=st.sampled_from(SOURCES),
    wide=st.sampled_from(["int32", "int64"]),
    length=st.integers(1, 200),
    offsets=st.lists(st.integers(0, SIZE), max_size=20),
)
def test_a_mapping_gives_the_same_windows_and_ends_where_the_file_does(
    content: bytes, source: str, wide: str, length: int, offsets: list[int]
) -> None:
    item, rows = np.dtype(source).itemsize, len(offsets)
    runs = Runs(-1, int64(*offsets), (length + 1) * item)
    results = []
    for engine in (native(), PYTHON):
        x, y = np.zeros((2, rows, length), wide)
        into = np.zeros(rows * (length + 1) * item, np.uint8)
        found = engine.fill_mapped(content, runs, Pair(x, y, length, source, None))
        copied = engine.fill_mapped(content, runs, into)
        results.append(
            (found, copied, None if found else (x.tobytes(), y.tobytes()), None if copied else into.tobytes())
        )
        if not copied:
            assert into.tobytes() == expected(content, runs)
    assert results[0] == results[1]


def test_numbers_with_a_stride_and_a_shift_are_offsets(content: bytes, fds: tuple[int, int]) -> None:
    numbers = int64(5, 0, 17)
    for engine in (native(), PYTHON):
        into = bytearray(30)
        runs = Runs(fds[0], numbers, 10, None, None, 100, 7)
        assert isinstance(engine.queue("announce").fill(runs, into, KEEP), int)
        assert into == content[507:517] + content[7:17] + content[1707:1717]
        back = Runs(fds[0], numbers + 1, 10, None, None, 100, -93)
        again = bytearray(30)
        assert isinstance(engine.queue("announce").fill(back, again, KEEP), int)
        assert again == into


@pytest.mark.parametrize(
    ("number", "stride", "shift"),
    [(2**62, 4, 0), (-(2**62), 4, 0), (2, 2**62, 0), (0, 1, -1), (2**40, 2**40, -(2**40)), (0, -1, 5), (3, 2**70, 0)],
)
def test_numbers_whose_offsets_no_file_has_are_refused(
    number: int, stride: int, shift: int, fds: tuple[int, int]
) -> None:
    with pytest.raises(ValueError, match=r"(offsets|stride): expected .* inside a file"):
        native().queue("read").fill(Runs(fds[0], int64(number), 1, None, None, stride, shift), bytearray(1), KEEP)


def test_a_file_is_unchanged_until_it_grows_is_written_or_loses_its_name(tmp_path: Path) -> None:
    path = tmp_path / "watched.bin"
    path.write_bytes(b"0123456789")
    with path.open("rb") as file:
        fd, found = file.fileno(), os.fstat(file.fileno())
        for engine in (native(), PYTHON):
            assert engine.unchanged(fd, 10, found.st_ctime_ns)
            assert not engine.unchanged(fd, 11, found.st_ctime_ns)
            assert not engine.unchanged(fd, 10, found.st_ctime_ns - 1)
            assert not engine.unchanged(-1, 10, found.st_ctime_ns)
            with pytest.raises(TypeError):
                engine.unchanged("fd", 10, 0)  # type: ignore[arg-type]
        path.write_bytes(b"9876543210")
        os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))  # size and time of writing are those of before
        assert not any(engine.unchanged(fd, 10, found.st_ctime_ns) for engine in (native(), PYTHON))
        now = os.fstat(fd).st_ctime_ns
        assert all(engine.unchanged(fd, 10, now) for engine in (native(), PYTHON))
        path.unlink()
        assert not any(engine.unchanged(fd, 10, os.fstat(fd).st_ctime_ns) for engine in (native(), PYTHON))


def test_targets_put_runs_anywhere(content: bytes, fds: tuple[int, int]) -> None:
    runs = Runs(fds[0], int64(10, 20, 30), int64(5, 0, 7), int64(20, 30, 3))
    for engine in (native(), PYTHON):
        into = bytearray(30)
        assert isinstance(engine.queue("announce").fill(runs, into, KEEP), int)
        assert into == bytes(3) + content[30:37] + bytes(10) + content[10:15] + bytes(5)


@pytest.mark.parametrize(("way", "direct"), ROUTES)
@pytest.mark.parametrize("drop", [DROP, DROP_SEQUENTIAL])
def test_dropping_leaves_nothing_in_the_page_cache(
    way: str, direct: bool, drop: int, file: Path, fds: tuple[int, int]
) -> None:
    """The negative control is the same read without dropping."""
    length = 4096 if drop == DROP else 128 * 1024
    runs = Runs(fds[0], np.arange(0, SIZE, length), length, None, fds[1] if direct else None)
    into = aligned(SIZE)
    # What a caller of scattered reads does: the kernel then brings in no more than was asked for.
    os.posix_fadvise(fds[0], 0, 0, os.POSIX_FADV_RANDOM if drop == DROP else os.POSIX_FADV_NORMAL)
    for engine in engines(way):
        queue = queue_of(engine, way)
        for _ in range(2):  # the second time the queue knows that nothing is cached
            forget(fds[0])
            assert isinstance(queue.fill(runs, into, drop), int)
            assert machine.page_cache(file).cached == 0, engine.name
        if not direct:
            assert isinstance(queue.fill(runs, into, KEEP), int)
            assert machine.page_cache(file).cached == SIZE


@pytest.mark.parametrize(("way", "direct"), ROUTES)
def test_the_end_of_a_file_names_the_run_and_what_came(way: str, direct: bool, fds: tuple[int, int]) -> None:
    runs = Runs(fds[0], int64(0, SIZE - 1500, 5, SIZE + 5), 2000, None, fds[1] if direct else None)
    for engine in engines(way):
        for _ in range(3):
            assert queue_of(engine, way).fill(runs, bytearray(8000), KEEP) == ("read", 1, 1500, 0)
        tokens = queue_of(engine, way).fill(runs, blank_pair(4, 999), KEEP)
        assert tokens == ("read", 1, 1500, 0)


def test_problems_have_names() -> None:
    assert Problem("read", 1, 2, 3).run == 1


def test_a_call_tells_how_many_runs_the_page_cache_had(fds: tuple[int, int]) -> None:
    runs = random_runs(fds[0], SIZE, 10, 100)
    for engine in (native(), PYTHON):
        queue = engine.queue("announce")
        os.pread(fds[0], SIZE, 0)
        assert queue.fill(runs, bytearray(1000), KEEP) == 10
        assert engine.queue("read").fill(runs, bytearray(1000), KEEP) == 0  # nobody looked
        os.posix_fadvise(fds[0], 0, 0, os.POSIX_FADV_RANDOM)
        forget(fds[0])
        far = Runs(fds[0], np.arange(8) * (128 << 10), 100)
        found = queue.fill(far, bytearray(800), KEEP)
        assert isinstance(found, int) and found < 4  # the kernel may keep a page that it was told to drop
        assert queue.fill(far, bytearray(800), KEEP) == 8
        os.posix_fadvise(fds[0], 0, 0, os.POSIX_FADV_NORMAL)


@pytest.mark.parametrize("name", ["native", "python"])
def test_misses_are_seen_again_soon_after_many_hits_in_a_row(name: str, fds: tuple[int, int]) -> None:
    """Trust in the page cache asks one run in 16, and one miss ends it."""
    engine = native() if name == "native" else PYTHON
    queue = engine.queue("announce")
    runs = Runs(fds[0], np.arange(256) * 4096, 100)
    os.pread(fds[0], SIZE, 0)
    for _ in range(3):
        assert queue.fill(runs, bytearray(25600), KEEP) == 256
    os.posix_fadvise(fds[0], 0, 0, os.POSIX_FADV_RANDOM)
    forget(fds[0])
    found = queue.fill(runs, bytearray(25600), KEEP)
    assert isinstance(found, int) and found < 64  # few more than up to the first probe, of 256
    os.posix_fadvise(fds[0], 0, 0, os.POSIX_FADV_NORMAL)


def test_plain_tuples_are_as_good_as_named_ones(content: bytes, fds: tuple[int, int]) -> None:
    for engine in (native(), PYTHON):
        into = bytearray(20)
        assert engine.queue("announce").fill((fds[0], int64(5, 50), 10, None, None, 1, 0), into, KEEP) == 2
        assert into == content[5:15] + content[50:60]
        x, y = np.zeros((2, 1, 4), np.int64)
        assert (
            engine.queue("read").fill(
                (fds[0], int64(6), 10, None, None, 1, 0), (x, y, 4, "uint16", None, None, 0), KEEP
            )
            == 0
        )
        assert x.tolist() == [np.frombuffer(content, np.uint16, 4, 6).tolist()]


def test_windows_need_no_scratch_of_the_size_of_the_batch(content: bytes, fds: tuple[int, int]) -> None:
    rows = SIZE // 2050
    x, y = np.zeros((2, rows, 1024), np.int32)
    queue = PYTHON.queue("read")
    tracemalloc.start()
    queue.fill(Runs(fds[0], np.arange(rows), 2050, None, None, 2050), Pair(x, y, 1024, "uint16"), KEEP)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 512 << 10  # half the batch's tokens; lists of runs are most of it
    narrow = np.frombuffer(content, np.uint16, rows * 1025).reshape(rows, 1025)
    assert np.array_equal(x, narrow[:, :-1]) and np.array_equal(y, narrow[:, 1:])


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_both_engines_locate_the_same_runs(content: bytes, fds: tuple[int, int], data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(0, 60), min_size=1, max_size=12))
    which = np.array([data.draw(st.integers(0, 2)) for _ in sizes], np.int32)
    ends = np.cumsum(sizes)
    shift = np.array(data.draw(st.lists(st.integers(0, 900), min_size=len(sizes), max_size=len(sizes))))
    found = os.fstat(fds[0])
    good = data.draw(st.booleans())
    times = np.array([found.st_ctime_ns, found.st_ctime_ns, found.st_ctime_ns - (not good)])
    files = WatchedFiles(ends, shift, which, np.full(3, SIZE), times, np.array([fds[0], fds[0], fds[0]], np.int32))
    numbers = np.array(data.draw(st.lists(st.integers(-2, 700), min_size=0, max_size=10)), np.int64)
    length = data.draw(st.integers(0, 30))
    results = []
    for engine in (native(), PYTHON):
        numbers_out, offsets = np.zeros(len(numbers), np.int32), np.zeros(len(numbers), np.int64)
        fine = engine.locate(files, numbers, 1, length, numbers_out, offsets, True)
        results.append((fine, numbers_out.tolist() if fine else None, offsets.tolist() if fine else None))
    assert results[0] == results[1]
    if results[0][0]:
        for number, offset in zip(numbers.tolist(), results[0][2] or [], strict=True):
            extent = int(np.searchsorted(ends, number, side="right"))
            assert offset == number + shift[extent] and number + length <= ends[extent]


def test_a_file_with_a_million_extents_is_asked_about_once(fds: tuple[int, int]) -> None:
    many, found = 1_000_000, os.fstat(fds[0])
    files = WatchedFiles(
        np.arange(1, many + 1),
        np.zeros(many, np.int64),
        np.zeros(many, np.int32),
        int64(SIZE),
        int64(found.st_ctime_ns),
        np.array([fds[0]], np.int32),
    )
    for engine in (native(), PYTHON):
        fds_found, offsets = np.zeros(5, np.int32), np.zeros(5, np.int64)
        assert engine.locate(files, np.arange(5) * 1000, 1, 1, fds_found, offsets, True)
        assert offsets.tolist() == [0, 1000, 2000, 3000, 4000]
    wrong = files._replace(which=np.full(many, 7, np.int32))
    assert not native().locate(wrong, np.arange(5), 1, 1, fds_found, offsets, True)


@pytest.mark.parametrize("length", [1, 648, 5000, 70_000])
@pytest.mark.parametrize("count", [1, 24, 4096])
def test_runs_read_as_neighbours_go_to_the_buffers_they_are_dealt_to(
    length: int, count: int, file: Path, content: bytes, fds: tuple[int, int]
) -> None:
    count = min(count, (8 << 20) // length // 8 * 8) if count > 1 else 1
    one = random_runs(fds[0], SIZE, count, length, seed=count)
    with opened(file) as other:  # of two descriptors in turn
        two = one._replace(fds=np.where(np.arange(count) % 2, fds[0], other).astype(np.int32))
        for engine in (native(), PYTHON):
            for runs in (one, two):
                for buffers in {1, 4, 8} if count > 1 else {1}:
                    into = [aligned(count // buffers * length) for _ in range(buffers)]
                    assert queue_of(engine, "announce").fill(runs, into, KEEP_NEAR) == count
                    assert b"".join(part.tobytes() for part in into) == expected(content, runs), engine.name


@pytest.mark.parametrize("way", ["uring", "aio"])
@pytest.mark.parametrize(("length", "count"), [(1, 1), (648, 3000), (8000, 120), (40_000, 24)])
def test_neighbours_come_from_the_disk_where_there_are_direct_descriptors(
    way: str, length: int, count: int, file: Path, content: bytes, fds: tuple[int, int]
) -> None:
    runs = random_runs(fds[0], SIZE, count, length, direct=fds[1])
    shares = [count // 3, 0, count - count // 3]  # buffers need not be of one size
    queue = queue_of(native(), way, staging=2 << 20)
    for _ in range(2):
        into = [aligned(share * length) for share in shares]
        forget(fds[0])
        assert queue.fill(runs, into, KEEP_NEAR) == 0
        assert b"".join(part.tobytes() for part in into) == expected(content, runs)
        assert machine.page_cache(file).cached == 0
    queue = queue_of(native(), way, staging=8 * (4096 + 2 * 4096))  # the control: no slot holds more than two pages
    into = [aligned(share * length) for share in shares]
    if length > 8192:
        assert queue.fill(runs, into, KEEP_NEAR) == count
        assert b"".join(part.tobytes() for part in into) == expected(content, runs)


@pytest.mark.parametrize("way", ["uring", "aio"])
def test_a_sweep_of_the_disk_that_fails_names_the_first_run_that_cannot_be_read(way: str, tmp_path: Path) -> None:
    noise(tmp_path / "short", 1_000_000)
    offsets = np.random.default_rng(5).permutation(10_000) * 128
    with opened(tmp_path / "short") as fd, opened(tmp_path / "short", direct=True) as direct:
        runs = Runs(fd, offsets.astype(np.int64), 128, None, direct)
        found = queue_of(native(), way, staging=2 << 20).fill(runs, [aligned(1_280_000)], KEEP_NEAR)
    first = int(np.flatnonzero(offsets + 128 > 1_000_000)[0])
    assert found == ("read", first, max(0, 1_000_000 - int(offsets[first])), 0)


@pytest.mark.parametrize("cold", [False, True])
def test_sequential_reads_that_keep_are_made_run_after_run_and_leave_the_pages(
    cold: bool, file: Path, content: bytes, fds: tuple[int, int]
) -> None:
    runs = Runs(fds[0], np.arange(0, 1 << 20, 1 << 17), 1 << 17)
    for engine in (native(), PYTHON):
        into = aligned(1 << 20)
        queue = queue_of(engine, "announce")
        file.read_bytes()
        assert queue.fill(runs, into, KEEP) == 8  # this queue looks into the page cache first
        if cold:
            forget(fds[0])
        assert queue.fill(runs, into, KEEP_SEQUENTIAL) == 0, engine.name  # and here it does not
        assert into.tobytes() == expected(content, runs), engine.name
        assert machine.page_cache(file).cached >= 1 << 20, engine.name


def test_the_first_of_many_neighbours_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    noise(tmp_path / "short", 100_000)
    offsets = np.random.default_rng(5).permutation(1000) * 128  # a quarter of them behind the end, one across it
    with opened(tmp_path / "short") as fd:
        runs = Runs(fd, offsets.astype(np.int64), 128)
        found = [queue_of(one, "announce").fill(runs, [aligned(128_000)], KEEP_NEAR) for one in (native(), PYTHON)]
    first = int(np.flatnonzero(offsets + 128 > 100_000)[0])
    assert found[0] == found[1] == ("read", first, max(0, 100_000 - int(offsets[first])), 0)


def test_many_targets_that_do_not_fit_their_runs_are_refused(fds: tuple[int, int]) -> None:
    queue = queue_of(native(), "announce")
    runs = random_runs(fds[0], SIZE, 6, 100)
    for into in ([], [aligned(600)] * 4, [aligned(300), aligned(299)]):
        with pytest.raises(ValueError, match="targets: expected"):
            queue.fill(runs, into, KEEP_NEAR)
    with pytest.raises(ValueError, match="one length"):
        queue.fill(runs._replace(lengths=np.full(6, 100)), [aligned(300), aligned(300)], KEEP_NEAR)
    with pytest.raises((TypeError, BufferError)):
        queue.fill(runs, [aligned(300), b"x" * 300], KEEP_NEAR)


def test_contexts_of_linux_aio_are_used_again_and_never_by_a_forked_child(content: bytes, fds: tuple[int, int]) -> None:
    def contexts() -> int:
        return Path("/proc/self/maps").read_text().count("/[aio]")

    def reads() -> bool:
        forget(fds[0])
        queue, into = queue_of(native(), "aio"), np.zeros(200 * 3001, np.uint8)
        found = queue.fill(runs, into, KEEP)
        queue.close()
        return isinstance(found, int) and into.tobytes() == expected(content, runs)

    runs = random_runs(fds[0], SIZE, 200, 3001, direct=fds[1])
    open_ones = [queue_of(native(), "aio") for _ in range(20)]
    most = contexts()
    for queue in open_ones:
        queue.close()
    assert most >= 20  # the control: each had one
    kept = contexts()
    assert 1 <= kept <= 8
    assert reads()
    child = os.fork()
    if child == 0:
        os._exit(0 if reads() and reads() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert reads()
    assert contexts() == kept, "none was made anew"
