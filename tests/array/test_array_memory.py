"""Memory by kind in fresh processes: every strategy but ``map`` stays inside the budget, and ``map`` must break it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.storage.processes import answer_of

from lowtide.machine import drop_page_cache, page_cache

pytestmark = pytest.mark.slow

MIB = 1 << 20
SIZE = 128 * MIB  # four times the budget, and the negative control passes it by a factor of two and more
BOUNDED = ("read", "remap", "advise")


@pytest.fixture(scope="module")
def big(disk: Path) -> Iterator[Path]:
    """128 MiB of rows of 2 KiB, really written, on a disk and out of the page cache."""
    path = disk / "rows.f32"
    block = np.random.default_rng(0).integers(0, 2**30, 4 * MIB // 4, np.int32).tobytes()
    with path.open("wb") as file:
        for _ in range(SIZE // len(block)):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
    yield path
    path.unlink()


PASS = """
    path, strategy, budget, way, cache = sys.argv[1:6]
    array = lowtide.open(path, dtype="int32", shape=(-1, 512), strategy=strategy, budget=budget, cache=cache)
    for warm in (array[:10], array[[5, 1]], next(array.shuffled(2))):
        pass                                        # imports, first descriptors, the shuffle's table
    del warm
    projected = array.plan()
    growth = Growth()
    total = 0
    batches = array.chunks(2048) if way == "chunks" else array.shuffled(2048, seed=1)
    for number, rows in enumerate(batches):
        total += int(rows[:, 0].astype(np.int64).sum())
        if number % 4 == 0:
            growth.look()
    growth.look()
    print(json.dumps([growth.peak, growth.anon, growth.mapped, growth.tables, total,
                      projected.anon, projected.mapped, page_cache(path).cached]))
"""


def full_pass(path: Path, strategy: str, budget: str, way: str, cache: str = "keep") -> dict[str, int]:
    names = ("peak", "anon", "mapped", "tables", "total", "projected_anon", "projected_mapped", "cached")
    return dict(zip(names, json.loads(answer_of(PASS, path, strategy, budget, way, cache)), strict=True))


@pytest.fixture(scope="module")
def total(big: Path) -> int:
    return int(np.fromfile(big, np.int32).reshape(-1, 512)[:, 0].astype(np.int64).sum())


def stays_inside(found: dict[str, int]) -> None:
    """A budget of 32 MiB, and 8 MiB for Python itself; by kind no more than was projected."""
    assert found["peak"] <= 40 * MIB, {name: round(size / MIB, 1) for name, size in found.items()}
    assert found["anon"] <= found["projected_anon"] + 8 * MIB
    assert found["mapped"] <= found["projected_mapped"] + 8 * MIB
    assert found["tables"] <= 2 * MIB


@pytest.mark.parametrize("way", ["chunks", "shuffled"])
@pytest.mark.parametrize("strategy", ["read", "remap", "advise"])
def test_a_full_pass_over_cached_data_grows_by_no_more_than_the_budget(
    big: Path, total: int, strategy: str, way: str
) -> None:
    found = full_pass(big, strategy, "32MiB", way)
    assert found["total"] == total
    stays_inside(found)


@pytest.mark.parametrize("way", ["chunks", "shuffled"])
def test_the_map_strategy_breaks_the_budget_that_the_others_keep(big: Path, total: int, way: str) -> None:
    found = full_pass(big, "map", "32MiB", way)
    assert found["total"] == total
    assert found["peak"] > 40 * MIB, "the negative control must grow, or the tests above measure nothing"
    assert found["mapped"] > SIZE // 2
    assert found["mapped"] <= found["projected_mapped"] + 8 * MIB


@pytest.mark.parametrize("way", ["chunks", "shuffled"])
@pytest.mark.parametrize("strategy", BOUNDED)
def test_a_full_pass_over_cold_data_stays_inside_the_budget_and_drop_leaves_little_of_it_behind(
    big: Path, total: int, strategy: str, way: str
) -> None:
    drop_page_cache(big)
    assert page_cache(big).cached < MIB
    found = full_pass(big, strategy, "32MiB", way, "drop")
    assert found["total"] == total
    assert found["cached"] < 16 * MIB
    stays_inside(found)


def test_cache_keep_leaves_the_file_behind(big: Path) -> None:
    """The negative control of the test above."""
    drop_page_cache(big)
    assert full_pass(big, "read", "32MiB", "chunks", "keep")["cached"] > SIZE // 2


SPARSE = """
    path, strategy = sys.argv[1:3]
    first = process_memory()
    with lowtide.open(path, dtype="uint16", shape=(-1, 1024), strategy=strategy, budget="8MiB") as array:
        assert len(array) == (4 << 40) // 2048
        def work():
            batches = array.shuffled(256, seed=1)
            for _ in range(40):
                assert not next(batches).any()
            middle = array.shuffled(256, seed=1, start=len(array) // 2)
            assert len(next(middle)) == 256
            assert array[len(array) - 1].shape == (1024,)
            assert not array[-3:].any() and not array[[5, 2**30, -1]].any()
        work()
        growth = Growth()
        for _ in range(3):
            work()
            growth.look()
        whole = process_memory()
        print(json.dumps([whole.anon + whole.mapped - first.anon - first.mapped, growth.peak, growth.tables]))
"""


@pytest.mark.parametrize("strategy", BOUNDED)
def test_a_sparse_file_of_4_tib_is_read_with_8_mib(tmp_path: Path, strategy: str) -> None:
    path = tmp_path / "sparse.u16"
    with path.open("wb") as file:
        file.truncate(4 << 40)
    whole, more, tables = json.loads(answer_of(SPARSE, path, strategy))
    assert whole < 12 * MIB
    assert more < 4 * MIB, "what was held at first is used again"
    assert tables < MIB, "page tables stay flat"


def test_a_four_gib_offset_is_not_wrapped(tmp_path: Path) -> None:
    """Real bytes on both sides of 2**32 and at the very end of a sparse file."""
    path = tmp_path / "far.u8"
    places = [0, 2**31 - 1, 2**32 - 1, 2**32, 2**32 + 5, 5 * 2**32 + 77, (1 << 40) - 1]
    with path.open("wb") as file:
        for number, place in enumerate(places):
            file.seek(place)
            file.write(bytes([number + 1]))
    script = """
    import ast
    path, places = sys.argv[1], ast.literal_eval(sys.argv[2])
    for strategy in ("read", "remap", "advise", "map"):
        with lowtide.open(path, dtype="uint8", strategy=strategy, budget="8MiB") as array:
            assert array[places].tolist() == list(range(1, len(places) + 1)), strategy
            assert [int(array[place]) for place in places] == list(range(1, len(places) + 1)), strategy
            assert np.concatenate([b.copy() for b in array.gather(places, 3)]).tolist() == list(range(1, 8))
            assert next(array.chunks(4, start=2**32 - 1))[:2].tolist() == [3, 4], strategy
    """
    answer_of(script, path, places)
