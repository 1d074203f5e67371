"""The projection of a run against brute force and real runs: reads counted, memory and device bytes measured."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.storage.processes import answer_of

import lowtide
from lowtide.machine import PAGE, file_kind
from lowtide.survey.projection import Plan, Workload, pages_under, project_run, windows_per_epoch

MIB = 1 << 20


@pytest.fixture(scope="module")
def tokens_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("projection") / "tokens.bin"
    block = np.random.default_rng(0).integers(0, 50_257, 8 * MIB, dtype=np.uint16)
    with path.open("wb") as file:
        for _ in range(8):  # 128 MiB
            file.write(block.tobytes())
        os.fsync(file.fileno())
    return path


def plan_of(**changes: Any) -> Plan:
    facts: dict[str, Any] = {"anon": 3, "mapped": 0, "cache": 50, "budget": 9, "strategy": "read", "rung": "keep"}
    return Plan(**{**facts, "engine": "python", "why": (), **changes})


def work_of(**changes: Any) -> Workload:
    facts = {
        "items": 1000,
        "item_bytes": 2050,
        "alignment": 2,
        "batch": 64,
        "world": 8,
        "total_bytes": 100,
        "units": 1024,
    }
    return Workload(**{**facts, **changes})


@given(st.integers(1, 20_000), st.integers(1, 9000))
def test_pages_under_a_run_are_the_average_over_every_offset_the_alignment_allows(length: int, alignment: int) -> None:
    offsets = [k * alignment % PAGE for k in range(PAGE)]
    touched = [(offset + length - 1) // PAGE + 1 for offset in offsets]
    assert pages_under(length, alignment) == pytest.approx(sum(touched) / len(touched))


def test_pages_under_nothing_are_none_and_aligned_rows_of_a_page_take_one() -> None:
    assert pages_under(0, 2) == 0
    assert pages_under(PAGE, PAGE) == 1
    assert pages_under(PAGE, 1) == pytest.approx(2 - 1 / PAGE)


@pytest.mark.parametrize("tokens", [2048, 2049, 3071, 3072, 100_000])
def test_windows_of_an_epoch_are_what_the_feed_delivers_before_any_comes_again(tokens: int, tmp_path: Path) -> None:
    path = tmp_path / "tokens.bin"
    np.arange(tokens, dtype=np.uint32).tofile(path)
    count = windows_per_epoch(tokens, 1024)
    with lowtide.open_tokens(path, dtype="uint32") as opened:
        feed = opened.batches(1, length=1024)
        starts = [int(next(feed)[0][0, 0]) for _ in range(count)]
        assert len(set(starts)) == count  # every window once
        again = int(next(feed)[0][0, 0])  # of the next epoch, with a phase of its own
        assert min(abs(again - start) for start in starts) < 1024


def test_projected_reads_of_a_step_are_the_preadv_calls_a_real_run_makes(
    tokens_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = 0
    preadv = os.preadv

    def counted(*words: Any) -> int:
        nonlocal made
        made += 1
        return preadv(*words)

    for world in (1, 4):
        with lowtide.open_tokens(tokens_file, dtype="uint16", cache="keep", engine="python") as tokens:
            tokens_file.read_bytes()  # cached: cold reads are tried twice now and then
            feed = tokens.batches(64, length=1024, rank=0, world=world)
            projection = project_run(work_of(world=world), feed.plan(), cached=True, ranks_here=1)
            next(feed)  # which also reads the fingerprint
            monkeypatch.setattr(os, "preadv", counted)
            made = 0
            for _ in range(50):
                next(feed)
            monkeypatch.undo()
        assert projection.requests_per_step is not None
        assert made == 50 * projection.requests_per_step // world


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["read", "remap", "advise", "map"])
def test_projected_memory_of_a_process_is_never_passed(strategy: str, tokens_file: Path) -> None:
    script = """
    path, strategy = sys.argv[1:]
    # One step before the first look: the program's own code comes into memory with it, and is not what is projected.
    with lowtide.open_tokens(path, dtype="uint16", strategy=strategy, budget="64MiB") as first:
        next(first.batches(1, length=1024))
    growth = Growth()
    tokens = lowtide.open_tokens(path, dtype="uint16", strategy=strategy, budget="64MiB")
    feed = tokens.batches(512, length=1024, seed=1)
    plan = feed.plan()
    for turn in range(40):
        x, y = next(feed)
        growth.look()
    print(json.dumps([plan.anon, plan.mapped, growth.anon, growth.mapped]))
    """
    anon, mapped, grown_anon, grown_mapped = json.loads(answer_of(script, tokens_file, strategy))
    assert grown_anon <= anon + 4 * MIB  # the interpreter's own
    assert grown_mapped <= mapped + 4 * MIB
    if strategy == "map":  # the control: what no budget bounds
        assert grown_mapped > 64 * MIB
    else:
        assert anon + mapped <= 64 * MIB
        assert anon <= 4 * max(grown_anon, 8 * MIB)  # a bound far above what happens would be of no use


def test_projected_device_bytes_are_what_the_kernel_counts_on_a_cold_file(tokens_file: Path) -> None:
    if file_kind(tokens_file).memory:
        pytest.skip("NOT TESTED: device bytes - temporary files live in memory here")
    script = """
    from lowtide.memory.measure.process import bytes_moved
    path, engine = sys.argv[1:]
    drop_page_cache(path)
    tokens = lowtide.open_tokens(path, dtype="uint16", cache="drop", engine=engine)
    feed = tokens.batches(64, length=1024, seed=3)
    before = bytes_moved(os.getpid())[0]
    for turn in range(100):
        next(feed)
    print(bytes_moved(os.getpid())[0] - before)
    """
    projection = project_run(work_of(), plan_of(), cached=False, ranks_here=1)
    measured = int(answer_of(script, tokens_file, "python"))
    assert measured == pytest.approx(101 * projection.device_bytes_per_step, rel=0.1)  # 100, and one announced
    # Direct reads of the native engine are cut to the disk's blocks, which are smaller than pages; two steps are ahead.
    assert 0 < int(answer_of(script, tokens_file, "auto")) <= 1.1 * 103 * projection.device_bytes_per_step


def test_a_cached_corpus_is_read_from_the_disk_once_and_an_uncached_one_every_epoch() -> None:
    work = work_of(items=64 * 100, total_bytes=10 * MIB)
    kept = project_run(work, plan_of(), cached=True, ranks_here=1)
    dropped = project_run(work, plan_of(rung="fadvise(DONTNEED)"), cached=False, ranks_here=1)
    assert (kept.device_bytes_first_epoch, kept.device_bytes_later_epochs) == (10 * MIB, 0)
    assert dropped.device_bytes_first_epoch == dropped.device_bytes_later_epochs == 100 * 96 * PAGE


def test_a_machine_holds_its_ranks_buffers_but_one_page_cache() -> None:
    found = project_run(work_of(total_bytes=60), plan_of(mapped=20), cached=True, ranks_here=8)
    assert found.process == {"anon": 3, "mapped": 20, "cache": 50}
    assert found.machine == {"anon": 24, "mapped": 60, "cache": 60}


def test_a_page_cache_never_comes_to_more_than_the_machine_has_room_for() -> None:
    found = project_run(work_of(total_bytes=900), plan_of(cache=900), cached=False, ranks_here=8, room=70)
    assert (found.process["cache"], found.machine["cache"]) == (70, 70)


def test_rates_follow_from_steps_per_second() -> None:
    found = project_run(work_of(items=6400), plan_of(), cached=True, ranks_here=1, steps_per_second=4.0)
    assert found.steps_per_epoch == 100
    assert found.seconds_per_epoch == 25
    assert found.units_per_second == 4 * 64 * 1024
    assert found.requests_per_second == 256
    assert found.device_bytes_per_second == 4 * 96 * PAGE
    assert project_run(work_of(), plan_of(strategy="map"), cached=True, ranks_here=1).requests_per_step is None


def test_random_order_leaves_some_pages_for_later_epochs_as_drawing_them_does() -> None:
    pages, rows = 500, 2000
    found = project_run(
        work_of(
            items=rows, item_bytes=PAGE, alignment=PAGE, batch=10, total_bytes=pages * PAGE, units=1, order="random"
        ),
        plan_of(),
        cached=True,
        ranks_here=1,
    )
    chance = np.random.default_rng(0)
    firsts, seconds = [], []
    for _ in range(200):
        first = set(chance.integers(0, pages, rows).tolist())
        second = set(chance.integers(0, pages, rows).tolist())
        firsts.append(len(first))
        seconds.append(len(second - first))
    assert found.device_bytes_first_epoch / PAGE == pytest.approx(np.mean(firsts), rel=0.02)
    assert found.device_bytes_later_epochs / PAGE == pytest.approx(np.mean(seconds), rel=0.1)


def test_in_order_every_page_is_read_once_and_each_rank_reads_one_run() -> None:
    rows = work_of(items=100, item_bytes=PAGE, alignment=PAGE, batch=10, world=1, total_bytes=100 * PAGE, units=1)
    windows = work_of(items=100, item_bytes=2050, batch=64, world=8, total_bytes=64 * 2048, overlap=2)
    for work in (rows, windows):
        found = project_run(replace(work, order="sequential"), plan_of(), cached=False, ranks_here=1)
        assert found.device_bytes_first_epoch == found.device_bytes_later_epochs == -(-work.total_bytes // PAGE) * PAGE
        again = project_run(replace(work, order="sequential"), plan_of(), cached=True, ranks_here=1)
        assert again.device_bytes_later_epochs == 0
    found = project_run(replace(rows, order="sequential"), plan_of(), cached=False, ranks_here=1)
    assert (found.requests_per_step, found.device_bytes_per_step) == (1, 10 * PAGE)
    found = project_run(replace(windows, order="sequential"), plan_of(), cached=False, ranks_here=1)
    assert found.requests_at_most
    # 8 windows of 2,048 bytes and one token lie on five pages: any even byte may be the first.
    assert found.device_bytes_per_step == 8 * 5 * PAGE


def test_rows_in_fortran_order_take_one_read_per_column() -> None:
    work = work_of(item_bytes=24, alignment=8, batch=10, world=1, total_bytes=MIB, units=1, places=3)
    found = project_run(work, plan_of(), cached=False, ranks_here=1)
    assert found.requests_per_step == 30
    assert found.device_bytes_per_step == 30 * PAGE
    small = project_run(replace(work, total_bytes=5 * PAGE), plan_of(), cached=False, ranks_here=1)
    assert small.device_bytes_per_step == 5 * PAGE  # never more than there is


def test_one_rank_or_row_more_than_the_other_divides_nothing_by_zero() -> None:
    work = work_of(items=1, item_bytes=32, alignment=32, batch=1, world=4, total_bytes=32, units=1)
    found = project_run(work, plan_of(), cached=True, ranks_here=4, steps_per_second=5.0)
    assert (found.steps_per_epoch, found.seconds_per_epoch) == (1.0, 0.2)
