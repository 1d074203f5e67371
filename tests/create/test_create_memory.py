"""What writing holds: dirty pages and page cache of the file inside the budget; np.memmap, which breaks it, beside."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cgroups import ENTER, memory_cgroup_of
from tests.storage.processes import answer_of, run_python

from lowtide.machine import room_for_cache

pytestmark = [pytest.mark.serial, pytest.mark.slow]

MIB = 1 << 20
SIZE = 128 * MIB
BUDGET = 16 * MIB
SLACK = 8 * MIB
CGROUP = 96 * MIB

# A thread looks at the unfinished file's pages all the time; the writer knows nothing of it.
WRITE = """
    import glob, threading
    place, way, cache, size, budget = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5])
    most = {"cached": 0, "dirty": 0, "samples": 0}
    over = threading.Event()
    def look():
        while not over.wait(0.001):
            for name in glob.glob(place + "/*.npy") + glob.glob(place + "/.*.unfinished"):
                try:
                    seen = page_cache(name)
                except FileNotFoundError:
                    continue
                if seen.how == "mincore":
                    most["samples"] = -1
                    return
                most["cached"] = max(most["cached"], seen.cached)
                most["dirty"] = max(most["dirty"], seen.dirty + seen.writeback)
                most["samples"] += 1
    threading.Thread(target=look).start()
    try:
        rows = np.random.default_rng(0).integers(0, 255, (1024, 4096), np.uint8)
        count = size // 4096
        grown = Growth()
        if way == "memmap":
            out = np.lib.format.open_memmap(place + "/z.npy", "w+", "uint8", (count, 4096))
            for first in range(0, count, 1024):
                out[first : first + 1024] = rows
            grown.look()
        elif way == "append":
            with lowtide.create(place + "/z.npy", dtype="uint8", shape=(-1, 4096), budget=budget, cache=cache) as out:
                for first in range(0, count, 1024):
                    out.append(rows)
                    grown.look()
        elif way == "small":
            with lowtide.create(place + "/z.npy", dtype="uint8", shape=(-1, 4096), budget=budget, cache=cache) as out:
                for first in range(count):
                    out.append(rows[first % 1024])
                    if first % 1024 == 0:
                        grown.look()
        else:
            from concurrent.futures import ThreadPoolExecutor
            shape = (count, 4096)
            with lowtide.create(place + "/z.npy", dtype="uint8", shape=shape, budget=budget, cache=cache) as out:
                def put(part):
                    for first in range(part * count // 4, (part + 1) * count // 4, 64):
                        out[first : first + 64] = rows[:64]
                with ThreadPoolExecutor(4) as pool:
                    list(pool.map(put, range(4)))
                grown.look()
    finally:
        over.set()
    most["left"] = page_cache(place + "/z.npy").cached
    most["anon"] = grown.anon
    print(json.dumps(most))
"""


def written(place: Path, way: str, cache: str) -> dict[str, int]:
    seen: dict[str, int] = json.loads(answer_of(WRITE, place, way, cache, SIZE, BUDGET))
    if seen["samples"] < 0:
        pytest.skip("NOT TESTED: dirty pages while writing (cachestat needs Linux 6.5)")
    assert seen["samples"] > 3
    return seen


@pytest.mark.parametrize("way", ["append", "small", "threads"])
def test_dropping_holds_dirty_pages_and_page_cache_inside_the_budget(tmp_path: Path, way: str) -> None:
    seen = written(tmp_path, way, "drop")
    assert seen["cached"] <= BUDGET + SLACK, seen
    assert seen["dirty"] <= BUDGET + SLACK, seen
    assert seen["anon"] <= BUDGET, seen
    assert seen["left"] <= 2 * MIB, seen


@pytest.mark.parametrize("way", ["append", "threads"])
def test_keeping_leaves_the_file_cached_and_still_bounds_what_is_dirty(tmp_path: Path, way: str) -> None:
    seen = written(tmp_path, way, "keep")
    assert seen["dirty"] <= BUDGET + SLACK, seen
    assert seen["left"] >= SIZE // 2, seen


def test_a_memmap_breaks_the_budget_that_create_keeps(tmp_path: Path) -> None:
    """The negative control: the same rows through np.memmap."""
    seen = written(tmp_path, "memmap", "-")
    assert seen["dirty"] > 3 * (BUDGET + SLACK), seen


# Inside a cgroup far smaller than the file


@pytest.fixture
def cgroup() -> Iterator[Path]:
    with memory_cgroup_of(CGROUP, "writing inside a small cgroup") as directory:
        yield directory


def test_a_file_three_times_the_cgroup_is_written_without_a_kill_and_auto_drops(tmp_path: Path, cgroup: Path) -> None:
    done = run_python(ENTER + WRITE, tmp_path, "append", "auto", 3 * CGROUP, BUDGET, cgroup, timeout=240)
    assert done.returncode != -9, "killed for memory"
    assert done.returncode == 0, done.stderr[-2000:]
    seen = json.loads(done.stdout)
    assert (tmp_path / "z.npy").stat().st_size == 3 * CGROUP + 128
    assert seen["left"] <= 2 * MIB, "cache='auto' saw the machine and not the cgroup"


def test_outside_the_cgroup_auto_keeps_a_file_that_fits(tmp_path: Path) -> None:
    if room_for_cache()[0] // 2 < 2 * SIZE:
        pytest.skip("NOT TESTED: cache='auto' outside a cgroup (less than 1 GiB is left here)")
    assert written(tmp_path, "append", "auto")["left"] >= SIZE // 2
