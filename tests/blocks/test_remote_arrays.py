"""An array behind a server is the array of the same bytes on disk, whatever is asked of it."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.blocks.conftest import Behind

import lowtide

ACCESS: dict[str, Callable[[lowtide.Array], Any]] = {
    "a row": lambda a: a[12_345],
    "the last row": lambda a: a[-1],
    "a slice": lambda a: a[5_000:9_000],
    "a slice with steps": lambda a: a[::977],
    "scattered rows": lambda a: a[[39_999, 0, 20_000, 7, 7]],
    "a mask": lambda a: a[np.arange(len(a)) % 5_003 == 1],
    "columns": lambda a: a[100:30_000:50, [3, 1]],
    "chunks": lambda a: np.concatenate(list(a.chunks(3_001))),
    "shuffled": lambda a: np.concatenate(list(a.shuffled(256, seed=3))),
    "shuffled locally": lambda a: np.concatenate(list(a.shuffled(256, seed=3, locality="1MiB"))),
    "gather": lambda a: np.concatenate(list(a.gather(np.arange(39_999, 0, -13), 100))),
    "sample": lambda a: next(a.sample(500, seed=1)),
    "a part": lambda a: np.concatenate(list(a.split(val=0.1, seed=4)[1].chunks(500))),
    "stats": lambda a: a.stats().mean,
}


@pytest.mark.parametrize("access", ACCESS)
def test_every_access_gives_the_bytes_of_a_local_file(behind: Behind, access: str) -> None:
    with behind.open() as remote, lowtide.open(behind.local) as local:
        np.testing.assert_array_equal(ACCESS[access](remote), ACCESS[access](local))


@pytest.mark.parametrize("strategy", ["read", "remap", "advise", "map"])
@pytest.mark.parametrize("engine", ["native", "python"])
def test_strategies_and_engines_give_the_same_bytes(behind: Behind, strategy: str, engine: str) -> None:
    pytest.importorskip("lowtide.engine")
    try:
        remote = behind.open(strategy=strategy, engine=engine, cache="drop")
    except ValueError as problem:
        pytest.skip(str(problem))  # the extension is not built
    np.testing.assert_array_equal(remote[[5, 39_000, 17]], behind.rows[[5, 39_000, 17]])
    np.testing.assert_array_equal(np.concatenate(list(remote.chunks(9_999))), behind.rows)


def test_opening_costs_one_request_and_brings_the_first_block(behind: Behind) -> None:
    remote = behind.open()
    np.testing.assert_array_equal(remote[10], behind.rows[10])
    assert behind.server.seen.requests == 1


def test_no_byte_is_fetched_twice_and_neighbours_come_together(behind: Behind) -> None:
    remote = behind.open()
    for _ in range(2):
        np.testing.assert_array_equal(np.concatenate(list(remote.chunks(1_000))), behind.rows)
    gets = behind.server.seen.gets
    assert sum(size for _, _, size in gets) == behind.local.stat().st_size
    assert len(gets) < 20  # blocks; sixteen of them are sampled for the fingerprint first


def test_another_process_and_another_run_find_the_blocks_here(behind: Behind) -> None:
    np.testing.assert_array_equal(behind.open()[:], behind.rows)
    before = behind.server.seen.requests
    np.testing.assert_array_equal(behind.open()[:], behind.rows)
    assert behind.server.seen.requests == before + 1  # what the object is, no more


def test_states_and_fingerprints_are_those_of_the_bytes_on_disk(behind: Behind) -> None:
    remote, local = behind.open().shuffled(256, seed=3), lowtide.open(behind.local).shuffled(256, seed=3)
    next(remote)
    state = remote.state_dict()
    assert json.dumps(state) and "127.0.0.1" not in json.dumps(state)
    local.load_state_dict(state)
    np.testing.assert_array_equal(next(remote), next(local))


def test_a_pickled_array_reads_on(behind: Behind) -> None:
    remote = pickle.loads(pickle.dumps(behind.open()))
    np.testing.assert_array_equal(remote[39_000:], behind.rows[39_000:])


def test_threads_share_one_array(behind: Behind) -> None:
    remote, wrong = behind.open(), list[int]()

    def read(seed: int) -> None:
        for number in np.random.default_rng(seed).integers(0, len(remote), 60).tolist():
            wrong.extend([] if np.array_equal(remote[number], behind.rows[number]) else [number])

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_together_reads_what_is_far_and_what_is_here_row_for_row(behind: Behind, tmp_path: Path) -> None:
    np.save(tmp_path / "y.npy", np.arange(len(behind.rows)))
    both = lowtide.together(behind.open(), lowtide.open(tmp_path / "y.npy"))
    for x, y in both.shuffled(512, seed=1):
        np.testing.assert_array_equal(x, behind.rows[y])


def test_a_list_may_mix_what_is_far_and_what_is_here(behind: Behind) -> None:
    joined = lowtide.open([behind.local, behind.address], cache_dir=behind.cache)
    np.testing.assert_array_equal(joined[[39_999, 40_000, 79_999]], behind.rows[[39_999, 0, 39_999]])


def test_the_plan_names_blocks_requests_and_bytes(behind: Behind) -> None:
    said = str(behind.open().plan())
    assert "1 of 20 blocks of 256 KiB are here" in said and "in 1 requests in file order or 19 scattered" in said


def test_raw_numbers_and_empty_objects_are_opened_as_files_are(behind: Behind) -> None:
    behind.server.objects["raw.f32"] = np.arange(1000, dtype="f4").tobytes()
    raw = lowtide.open(behind.server.url("raw.f32"), dtype="float32", cache_dir=behind.cache)
    np.testing.assert_array_equal(raw[990:], np.arange(990, 1000, dtype="f4"))
    behind.server.objects["nothing.f32"] = b""
    with pytest.raises(lowtide.FormatError, match="empty file"):
        lowtide.open(behind.server.url("nothing.f32"), dtype="float32", cache_dir=behind.cache)


@pytest.mark.parametrize("locality", ["12MiB", "1MiB"])  # windows, of which two or all the following are asked for
def test_requests_are_under_way_before_the_first_answer_is_waited_for(behind: Behind, locality: str) -> None:
    """Those of many windows where they are small, and none waits for the sixteen blocks of the fingerprint."""
    data = np.random.default_rng(5).integers(0, 256, 48 * 2**20, dtype=np.uint8)
    behind.server.objects["many.u8"] = data.tobytes()
    opened = {"dtype": "uint8", "shape": (-1, 4096), "cache_dir": behind.cache}
    with lowtide.open(behind.server.url("many.u8"), **opened) as remote:  # type: ignore[arg-type]
        behind.server.faults.together = behind.server.number + 24
        seen = sum(int(rows.sum(dtype=np.int64)) for rows in remote.shuffled(64, seed=1, locality=locality))
    assert behind.server.seen.alone == 0
    assert seen == int(data.sum(dtype=np.int64))
    assert sum(size for _, _, size in behind.server.seen.gets) == len(data)


def test_a_first_batch_imports_no_part_of_numpy_that_is_not_there_yet(behind: Behind) -> None:
    code = """
import sys, lowtide
with lowtide.open(sys.argv[1], cache_dir=sys.argv[2]) as a:
    next(a.shuffled(64, seed=0, locality="1MiB"))
print([name for name in sys.modules if name.startswith("numpy.ma.")])
"""
    command = [sys.executable, "-c", code, behind.address, str(behind.cache)]
    assert subprocess.run(command, capture_output=True, check=True, text=True).stdout == "[]\n"
