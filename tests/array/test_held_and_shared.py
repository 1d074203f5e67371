"""What is shared by processes and stores: descriptors, locks, ranks, files that change, mappings and scratch memory."""

from __future__ import annotations

import gc
import json
import os
import pickle
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.storage.processes import answer_of

import lowtide
from lowtide.machine import file_kind
from lowtide.storage.watched_files import KEPT

MIB = 1 << 20
MAPPED = ("remap", "advise", "map")
STRATEGIES = ("read", *MAPPED)


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows.npy"
    np.save(path, np.arange(4096 * 64, dtype=np.int32).reshape(4096, 64))
    return path


# Descriptors


@pytest.fixture
def few_descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024 if hard == resource.RLIM_INFINITY else min(1024, hard), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("strategy", ["read", "map"])
def test_five_corpora_of_300_shards_stay_below_the_limit_of_one_process(
    tmp_path: Path, strategy: str, few_descriptors: None
) -> None:
    for shard in range(300):
        np.full(64, shard, np.uint16).tofile(tmp_path / f"{shard:03}.bin")
    corpora = [lowtide.open_tokens(tmp_path / "*.bin", dtype="uint16", strategy=strategy) for _ in range(5)]
    for corpus in corpora:
        assert np.array_equal(corpus[:], np.repeat(np.arange(300, dtype=np.uint16), 64))
        for step in range(20):
            x, _ = corpus.batches(64, length=16, seed=step)[step]
            assert x.shape == (64, 16)
    for corpus in corpora:
        corpus.close()


def test_running_out_of_descriptors_makes_lowtide_let_go_of_its_own_and_then_says_what_to_do(rows: Path) -> None:
    script = """
    import resource
    path = sys.argv[1]
    array = lowtide.open(path)
    array[0]
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    taken = []
    try:
        while True:
            taken.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        pass
    other = lowtide.open  # opening needs one descriptor, which array's store can give up
    os.close(taken.pop())
    second = other(path)
    taken.append(os.open("/dev/null", os.O_RDONLY))
    assert second[5].tolist() == array[5].tolist()
    while True:
        try:
            taken.append(os.open("/dev/null", os.O_RDONLY))
        except OSError:
            break
    second.close(); array.close()
    third = None
    os.close(taken.pop())
    third = lowtide.open(path)
    try:
        while True:
            taken.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        pass
    try:
        third[0]
        print("read")
    except lowtide.ReadError as problem:
        print(problem)
    """
    said = answer_of(script, rows)
    assert "Close files this program no longer needs, or raise the limit (ulimit -n)" in said


def test_a_store_that_is_gone_keeps_no_descriptor(rows: Path) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(20):
        array = lowtide.open(rows)
        array[[1, 5]]
        array[3:9]
    del array
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    assert KEPT.together >= 1


def test_a_feed_that_is_dropped_lets_go_of_its_files_at_once(tmp_path: Path) -> None:
    np.zeros(1 << 16, np.uint16).tofile(tmp_path / "t.bin")
    before = len(list(Path("/proc/self/fd").iterdir()))
    gc.disable()  # nothing may wait for the collector
    try:
        for strategy in ("read", "map"):
            feed = lowtide.open_tokens(tmp_path / "t.bin", dtype="uint16", strategy=strategy).batches(8, length=16)
            next(feed)
            next(feed)
            del feed
            assert len(list(Path("/proc/self/fd").iterdir())) == before, strategy
    finally:
        gc.enable()


# Fork


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_forked_child_closes_and_reads_also_when_a_thread_of_the_parent_held_every_lock(
    rows: Path, strategy: str
) -> None:
    script = """
    import threading
    path, strategy = sys.argv[1:3]
    array = lowtide.open(path, strategy=strategy, budget="4MiB")
    expected = array[7].tolist()
    batches = array.shuffled(8, seed=1)
    next(batches)
    store = array._store
    locks = [store._turn, store.budget._turn, batches._turn]
    holding, done = threading.Event(), threading.Event()
    def hold():
        for turn in locks:
            turn.lock.acquire()
        holding.set()
        done.wait()
        for turn in locks:
            turn.lock.release()
    thread = threading.Thread(target=hold)
    thread.start()
    holding.wait()
    child = os.fork()
    if child == 0:
        found = []
        def work():
            found.append(array[7].tolist() == expected and len(next(batches)) == 8)
        threads = [threading.Thread(target=work) for _ in range(4)]
        for one in threads: one.start()
        for one in threads: one.join()
        array.close()
        os._exit(0 if found == [True] * 4 else 1)
    _, status = os.waitpid(child, 0)
    done.set()
    thread.join()
    print(os.waitstatus_to_exitcode(status))
    """
    assert answer_of(script, rows, strategy) == "0"


# Ranks


def test_a_pickled_feed_of_several_ranks_still_keeps_the_page_cache(tmp_path: Path) -> None:
    np.zeros(1 << 16, np.uint16).tofile(tmp_path / "t.bin")
    tokens = lowtide.open_tokens(tmp_path / "t.bin", dtype="uint16")
    tokens.store.drop = True  # as on a machine where the data does not fit
    feed = tokens.batches(8, length=16, rank=0, world=2)
    assert not tokens.store.drop
    again = pickle.loads(pickle.dumps(feed))
    assert again.tokens.store._ranks == 2
    again.tokens.store.drop = True
    again.tokens.store.keep_for_ranks(1)
    assert not again.tokens.store.drop, "it remembers that it shares its files"


# Files that change


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_file_rewritten_in_place_is_noticed(rows: Path, strategy: str) -> None:
    with lowtide.open(rows, strategy=strategy, budget="4MiB") as array:
        batches = array.shuffled(16, seed=0)
        next(batches)
        size = rows.stat().st_size
        before = rows.stat()
        with rows.open("r+b") as file:
            file.truncate(1000)
            file.truncate(size)
        os.utime(rows, ns=(before.st_atime_ns, before.st_mtime_ns + 1_000_000))  # also where clocks are coarse
        with pytest.raises(lowtide.ReadError, match=r"rewritten in place \(its modification time changed\)") as caught:
            next(batches)
        assert caught.value.path == str(rows)


def test_the_owner_of_a_writable_memmap_may_write(tmp_path: Path) -> None:
    path = tmp_path / "own.dat"
    mine = np.memmap(path, np.float32, "w+", shape=(100, 4))
    mine[:] = 1
    mine.flush()
    with lowtide.open(mine) as array:
        assert array[3].tolist() == [1] * 4
        mine[3] = 2
        mine.flush()
        os.utime(path, ns=(1, 1))
        assert array[3].tolist() == [2] * 4


# Mappings


def test_a_file_truncated_between_the_check_and_the_mapping_is_a_read_error(rows: Path) -> None:
    with lowtide.open(rows, strategy="remap", budget="4MiB") as array:
        strategy = array._store.strategy
        descriptor = array._store.files.descriptor(0)
        os.truncate(rows, 1000)
        with pytest.raises(lowtide.ReadError, match=r"truncated to 1000 B \(1000 bytes\)"):
            strategy._made(0, descriptor, 0)  # type: ignore[union-attr]


@pytest.mark.parametrize("strategy", MAPPED)
def test_a_filesystem_that_cannot_map_is_a_read_error_with_the_path(strategy: str) -> None:
    path = Path("/sys/kernel/notes")
    try:
        size = len(path.read_bytes())
    except OSError:
        pytest.skip("NOT TESTED: no file that can be read but not mapped was found here")
    if path.stat().st_size != size:
        pytest.skip("NOT TESTED: no file that can be read but not mapped was found here")
    with (
        lowtide.open(path, dtype="uint8", strategy=strategy, budget="4MiB") as array,
        pytest.raises(lowtide.ReadError, match=r"expected to map the file, got .*\. Use strategy='read'\."),
    ):
        array[:]


@pytest.mark.parametrize("strategy", MAPPED)
def test_the_plan_of_a_mapped_strategy_names_its_danger(rows: Path, strategy: str) -> None:
    with lowtide.open(rows, strategy=strategy, budget="4MiB") as array:
        assert "SIGBUS" in str(array.plan())
    with lowtide.open(rows) as array:
        assert "SIGBUS" not in str(array.plan())


FOLIOS = """
    path, strategy = sys.argv[1:3]
    with open(path, "rb") as file:                      # large folios: as any sequential reader leaves them
        while file.read(MIB):
            pass
    array = lowtide.open(path, dtype="uint8", shape=(-1, 4096), strategy=strategy, budget="64MiB")
    array[:10]
    def high():
        return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("VmHWM"))
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")                                 # the high-water mark starts from here
    first = high()
    it = array.chunks(256)
    for _ in range(24):
        next(it)
    next(array.shuffled(1024))
    for _ in array.chunks(len(array) // 16):
        pass
    next(array.shuffled(1024, seed=1))
    print(high() - first)
"""


@pytest.fixture(scope="module")
def quarter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """256 MiB, really written."""
    path = tmp_path_factory.mktemp("folios") / "rows.u8"
    with path.open("wb") as file:
        for number in range(64):
            file.write(bytes([number]) * (4 * MIB))
        file.flush()
        os.fsync(file.fileno())
    yield path
    path.unlink()


@pytest.mark.serial
@pytest.mark.parametrize("strategy", ["remap", "advise"])
def test_chunks_then_shuffled_rows_stay_inside_the_budget_where_faults_map_large_folios(
    quarter: Path, strategy: str
) -> None:
    if file_kind(quarter).memory:
        pytest.skip("NOT TESTED: large folios of a disk's page cache, the temporary directory lives in memory")
    assert int(answer_of(FOLIOS, quarter, strategy)) <= (64 + 8) * MIB


@pytest.mark.serial
def test_the_plain_map_passes_the_budget_that_the_cures_keep(quarter: Path) -> None:
    assert int(answer_of(FOLIOS, quarter, "map")) > (64 + 8) * MIB, "the negative control must grow"


# Selections and scratch


SELECTION = """
    path, what = sys.argv[1:3]
    array = lowtide.open(path, dtype="float32", shape=(-1, 256), budget=sys.argv[3])
    array[:4, 3]
    growth = Growth()
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    def high():
        return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("VmHWM"))
    first = high()
    found = array[:, 3] if what == "column" else array[:][:, 3]
    print(json.dumps([high() - first, found.nbytes, int(found[:100].sum())]))
"""


@pytest.mark.serial
def test_a_column_of_a_large_array_is_read_in_pieces_and_the_whole_array_is_not(tmp_path: Path) -> None:
    path = tmp_path / "wide.f32"
    with path.open("wb") as file:
        file.truncate(256 * MIB)
    grew, size, _ = json.loads(answer_of(SELECTION, path, "column", "auto"))
    assert grew <= size + 24 * MIB, "an eighth of the budget at a time, and the result"
    grew, _, _ = json.loads(answer_of(SELECTION, path, "whole", 512 * MIB))
    assert grew > 200 * MIB, "the negative control must grow"


def test_selections_read_in_pieces_are_what_numpy_gives(tmp_path: Path) -> None:
    values = np.arange(3000 * 4 * 6, dtype=np.int64).reshape(3000, 4, 6)
    np.save(tmp_path / "v.npy", values)
    mask = np.random.default_rng(0).random((3000, 4)) < 0.3
    rows, columns = np.arange(2999, -1, -2), np.arange(1500) % 4
    keys: list[Any] = [
        np.s_[:, 3],
        np.s_[..., 3],
        np.s_[:, 1:3, 5],
        np.s_[::2, 0],
        np.s_[::-3, :, 1],
        np.s_[:, None, 2],
        np.s_[:, [0, 2]],
        np.s_[:, [0, 2], [1, 3]],
        np.s_[:, [0, 2], :, None],
        np.s_[:, [[0], [2]], [1, 3]],
        (rows, columns),
        (rows, 2),
        (rows, slice(None), columns),
        (rows, columns, slice(1, 3)),
        (mask,),
        (mask, 2),
        (mask[:, 0], 1),
        (mask[:, 0], slice(None), 2),
    ]
    with lowtide.open(tmp_path / "v.npy", budget="1MiB") as array:
        for key in keys:
            assert np.array_equal(array[key], values[key]), key
            assert array[key].dtype == values.dtype


DUPLICATES = """
    array = lowtide.open(sys.argv[1], dtype="uint8", shape=(-1, 500), budget="8MiB")
    array[[7] * 100]
    def high():
        return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("VmHWM"))
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    first = high()
    found = array[[7] * 15000]
    print(high() - first, found.nbytes)
"""


@pytest.mark.serial
def test_one_row_asked_for_15000_times_costs_the_result_and_little_more(tmp_path: Path) -> None:
    (tmp_path / "r.u8").write_bytes(os.urandom(50_000))
    grew, size = map(int, answer_of(DUPLICATES, tmp_path / "r.u8").split())
    assert size == 15000 * 500
    assert grew <= size + 2 * MIB


def test_a_hint_that_fails_does_not_fail_the_batch(rows: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The operating system is the seam: a kernel that refuses posix_fadvise."""

    def refuse(*_: object) -> None:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(os, "posix_fadvise", refuse)
    for strategy in STRATEGIES:
        with lowtide.open(rows, strategy=strategy, cache="drop", budget="4MiB") as array:
            assert next(array.shuffled(16)).shape == (16, 64)
            assert next(array.chunks(16)).shape == (16, 64)
