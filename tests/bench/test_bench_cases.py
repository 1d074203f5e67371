"""Jobs and the processes that run them, on small real files."""

from __future__ import annotations

import os
import signal
import threading
import time
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.cgroups import memory_cgroup_of
from tests.storage.processes import answer_of

from lowtide.array import Array
from lowtide.bench.case import measure
from lowtide.bench.jobs import (
    READING_PATTERNS,
    READING_WAYS,
    Ask,
    Job,
    as_rows,
    data_bytes,
    jobs_for,
    most_cold,
    one_file,
    quick,
)
from lowtide.bench.rounds import in_fresh_process, measure_all
from lowtide.bench.ways import batches, layout_of_job
from lowtide.formats import layout_of
from lowtide.machine import file_kind
from lowtide.memory.measure.process import children
from lowtide.storage.store import Store

MIB = 1 << 20
ASK = Ask(batch=16, length=64, seconds=0.05)


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokens") / "tokens.npy"
    np.save(path, np.random.default_rng(0).integers(0, 5000, 2 * MIB, dtype=np.uint16))
    return path


def job_of(path: Path, way: str, pattern: str, *, cold: bool = False) -> Job:
    jobs = jobs_for(layout_of(path), ASK, cold=True)
    return replace(next(job for job in jobs if (job.way, job.pattern) == (way, pattern)), cold=cold)


@pytest.mark.parametrize("way", [way.name for way in READING_WAYS if "chunks" in way.patterns])
def test_every_way_passes_over_every_row_once_in_chunks_and_shuffled(way: str, tokens: Path) -> None:
    for pattern in ("chunks", "rows"):
        job = job_of(tokens, way, pattern)
        assert sum(batches(job, job.shape[0], endless=False)) == job.shape[0] == 2 * MIB // 64


@pytest.mark.parametrize("way", [way.name for way in READING_WAYS])
def test_every_way_gives_whole_batches_of_windows(way: str, tokens: Path) -> None:
    job = job_of(tokens, way, "windows")
    assert list(islice(batches(job, job.shape[0], endless=True), 5)) == [16] * 5


@pytest.mark.parametrize("order", ["C", "F"])
def test_a_job_reads_the_same_rows_as_numpy_in_both_memory_orders(order: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.npy"
    rows = np.asarray(np.random.default_rng(1).standard_normal((500, 6)), order=order)  # type: ignore[call-overload]
    np.save(path, rows)
    job = job_of(path, "read, keep", "rows")
    layout = layout_of_job(job)
    with Array(layout, Store(layout.extents)) as array:
        assert np.array_equal(array[:], rows)
    for way in ("np.memmap", "np.memmap recreated", "read, keep"):
        assert sum(batches(job_of(path, way, "rows"), 500, endless=False)) == 500


def test_ways_that_drop_are_left_out_where_nothing_can_be_cold(tokens: Path) -> None:
    layout = layout_of(tokens)
    everything = {job.way for job in jobs_for(layout, ASK, cold=True)}
    assert everything == {way.name for way in READING_WAYS}
    assert everything - {job.way for job in jobs_for(layout, ASK, cold=False)} == {
        "read, drop",
        "remap, drop",
        "advise, drop",
    }


def test_only_one_axis_of_integers_has_windows(tokens: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "floats.npy", np.zeros((300, 8)))
    assert {job.pattern for job in jobs_for(layout_of(tokens), ASK, cold=True)} == set(READING_PATTERNS)
    assert {job.pattern for job in jobs_for(layout_of(tmp_path / "floats.npy"), ASK, cold=True)} == {"chunks", "rows"}


def test_of_several_files_the_largest_is_measured(tmp_path: Path) -> None:
    for place, count in enumerate((100, 300, 200)):
        np.save(tmp_path / f"{place}.npy", np.zeros((count, 4), np.float32))
    layout = one_file(layout_of([tmp_path / f"{place}.npy" for place in range(3)]))
    assert layout.extents[0].path.endswith("1.npy")
    assert layout.shape == (300, 4)


def test_a_file_smaller_than_a_batch_is_refused_with_the_batch_that_fits(tmp_path: Path) -> None:
    path = tmp_path / "few.npy"
    np.save(path, np.zeros((10, 4)))
    with pytest.raises(ValueError, match=r"expected 16 rows or more for a batch of 16, got 10 .* Use --batch 10 "):
        jobs_for(layout_of(path), ASK, cold=True)
    np.save(path, np.zeros(600, np.uint16))
    with pytest.raises(ValueError, match=r"expected 2048 tokens or more for a batch of 16, got 600 .* Use --batch 4 "):
        jobs_for(layout_of(path), ASK, cold=True)


def test_rows_are_stated_for_one_axis_only(tokens: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "table.npy", np.zeros((300, 8)))
    assert as_rows(layout_of(tokens), replace(ASK, row=100)).shape == (2 * MIB // 100, 100)
    with pytest.raises(ValueError, match="--row: expected data along one axis, got shape"):
        as_rows(layout_of(tmp_path / "table.npy"), replace(ASK, row=100))
    with pytest.raises(ValueError, match="for one row, got"):
        as_rows(layout_of(tokens), replace(ASK, row=3 * MIB))


def test_a_cold_part_ends_before_its_own_pages_come_back(tokens: Path) -> None:
    job = job_of(tokens, "read, keep", "windows", cold=True)
    most = most_cold(job)
    assert most is not None
    assert most * 2 * 4096 <= job.size // 4 + job.batch * 2 * 4096
    assert most_cold(job_of(tokens, "read, keep", "chunks", cold=True)) is None


def test_a_measured_case_has_rates_and_a_cold_part_counts_the_device(tokens: Path) -> None:
    if file_kind(tokens).memory:
        pytest.skip("NOT TESTED: a cold part - temporary files live in memory here")
    found = measure(job_of(tokens, "read, keep", "chunks", cold=True))
    assert found["notes"] == []
    assert found["warm"]["items"] > 0
    cold = found["cold"]
    assert cold["whole"]
    assert cold["items"] == 2 * MIB // 64
    assert 4 * MIB <= cold["device"] <= 6 * MIB  # every byte once; a page or two around them
    assert 4 * MIB <= cold["left"] <= 5 * MIB
    dropped = measure(job_of(tokens, "read, drop", "chunks", cold=True))
    assert dropped["warm"] is None
    assert dropped["cold"]["left"] < MIB


@pytest.mark.slow
def test_memory_is_seen_from_outside_and_the_kept_map_shows(tmp_path: Path) -> None:
    path = tmp_path / "rows.bin"
    np.zeros(48 * MIB, np.uint8).tofile(path)
    layout = layout_of(path, dtype="uint8", shape=(-1, 4096))
    jobs = {job.way: job for job in jobs_for(layout, replace(ASK, seconds=1.0), cold=False) if job.pattern == "chunks"}
    kept = in_fresh_process(jobs["np.memmap"], 60)
    ours = in_fresh_process(jobs["read, keep"], 60)
    assert kept["mapped"] > 32 * MIB
    assert ours["mapped"] < 8 * MIB
    assert 8 * MIB <= ours["anon"] <= 24 * MIB  # two chunks of 8 MiB


def test_a_job_that_fails_or_hangs_is_reported_not_raised(tokens: Path) -> None:
    job = job_of(tokens, "read, keep", "rows")
    lost = in_fresh_process(replace(job, path="/nowhere/tokens.npy"), 60)
    assert lost["warm"] is None
    assert "/nowhere/tokens.npy" in lost["notes"][0]
    hung = in_fresh_process(replace(job, seconds=60.0), 0.5)
    assert (hung["cold"], hung["warm"]) == (None, None)
    assert "within 0 s: ended" in hung["notes"][0] or "within 1 s: ended" in hung["notes"][0]


def test_a_file_read_whole_is_not_called_cut_short_because_of_its_header(tokens: Path) -> None:
    job = job_of(tokens, "read, keep", "chunks")
    assert (job.size, data_bytes(job)) == (4 * MIB + 128, 4 * MIB)


def killed_while_it_runs(job: Job) -> dict[str, Any]:
    """What is reported of a job that somebody else kills."""
    own = os.getpid()
    before = set(children(own))

    def kill() -> None:
        while not (started := set(children(own)) - before):
            time.sleep(0.01)
        os.kill(started.pop(), signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        return in_fresh_process(replace(job, seconds=60.0), 600)
    finally:
        killer.join()


def test_a_job_killed_from_outside_is_not_reported_as_slow(tokens: Path) -> None:
    found = killed_while_it_runs(job_of(tokens, "read, keep", "rows"))
    assert found["notes"] == ["killed from outside (SIGKILL): perhaps out of memory"]


def test_a_job_killed_for_want_of_memory_says_so(tmp_path: Path) -> None:
    with memory_cgroup_of(64 * MIB, "a job killed for want of memory") as cgroup:
        path = tmp_path / "rows.bin"
        with path.open("wb") as file:
            file.truncate(512 * MIB)
        script = """
    from dataclasses import replace
    from lowtide.bench.jobs import Ask, jobs_for
    from lowtide.bench.rounds import in_fresh_process
    from lowtide.formats import layout_of
    with open(sys.argv[2] + "/cgroup.procs", "w") as file:
        file.write(str(os.getpid()))
    layout = layout_of(sys.argv[1], dtype="uint8", shape=(-1, 4096))
    jobs = jobs_for(layout, Ask(), cold=False)
    job = next(job for job in jobs if (job.way, job.pattern) == ("np.memmap", "chunks"))
    print(in_fresh_process(replace(job, batch=100_000), 600)["notes"])  # one chunk of 390 MiB in 64 MiB
    """
        assert answer_of(script, path, cgroup, timeout=600) == "['killed: out of memory']"


def test_quick_keeps_what_was_asked_but_time_and_rounds() -> None:
    asked = Ask(batch=5, length=7, row=3, budget="1MiB", seconds=9, rounds=9, drop=False)
    made = quick(asked)
    assert (made.batch, made.length, made.row, made.budget, made.drop) == (5, 7, 3, "1MiB", False)
    assert made.rounds == 1
    assert made.total_seconds is not None


@pytest.mark.slow
def test_a_run_that_has_an_end_names_what_it_had_no_time_for(tokens: Path) -> None:
    ask = replace(quick(ASK), drop=False, total_seconds=3.0)  # however many cases fit, each is accounted for
    found = measure_all(layout_of(tokens), ask, lambda *_: None)
    assert {case.way for case in found.cases} == {way.name for way in READING_WAYS if way.warm}
    for case in found.cases:
        assert bool(case.rounds or case.notes) != ((case.pattern, case.way) in found.skipped), case
