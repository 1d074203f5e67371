"""However many read through one small disk: every request that fits half of it is answered, and none with an error."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from tests.blocks.conftest import Behind
from tests.blocks.test_disk import a_file, big

from lowtide.blocks.block_file import BLOCK, FIRST, IN_LINE, open_ledger, try_lock
from lowtide.blocks.disk import Disk
from lowtide.blocks.first_in_line import Line
from lowtide.blocks.messages import CrowdedError

DEADLINE = 240.0  # seconds; it takes a few, and for ever where readers take away each other's blocks

READERS = """
import os, sys, threading
import numpy as np
import lowtide

address, local, cache, threads, children, times = sys.argv[1:4] + [int(one) for one in sys.argv[4:]]
rows = np.fromfile(local, np.int32).reshape(-1, 1024)
form = {"tensor": "X"} if address.endswith(".h5") else {"dtype": "int32", "shape": (-1, 1024)}
remote = lowtide.open(address, cache_dir=cache, disk="16MiB", **form)
wrong = []

def read(seed):
    rng = np.random.default_rng(seed)
    try:
        for _ in range(times):
            numbers = rng.integers(0, len(rows), 40)  # of 160 blocks, where 64 have room
            assert (remote[numbers] == rows[numbers]).all()
            first = int(rng.integers(0, len(rows) - 1500))
            assert (remote[first : first + 1500] == rows[first : first + 1500]).all()
            for some in remote.shuffled(64, seed=seed, start=first, locality="4MiB"):
                assert np.isin(some[:, 0], rows[:, 0]).all()
                break
    except BaseException as problem:
        wrong.append(repr(problem))

pids = []
for child in range(children):
    pids.append(os.fork())
    if pids[-1] == 0:
        read(1000 + child)
        print(*wrong, flush=True)
        os._exit(len(wrong))
started = [threading.Thread(target=read, args=(seed,)) for seed in range(threads)]
for one in started:
    one.start()
for one in started:
    one.join()
print(*wrong, flush=True)
sys.exit(bool(wrong) or any([os.waitpid(pid, 0)[1] for pid in pids]))
"""

FIRST_OF_ALL = """
import os, sys, time
from lowtide.blocks.first_in_line import Line

with Line() as line:
    line.wait([sys.argv[1]])
    line.keep([(sys.argv[2], list(range(32)))])
    child = os.fork()
    if child:
        print(child, flush=True)
    time.sleep(3600)
"""


def started(script: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)


def said(process: subprocess.Popen[str]) -> tuple[str, int]:
    try:
        text, _ = process.communicate(timeout=DEADLINE)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        pytest.fail(f"readers made no progress for {DEADLINE:.0f} seconds")
    return text.strip(), process.returncode


def readers(behind: Behind, threads: int, children: int, times: int, compressed: bool = False) -> subprocess.Popen[str]:
    rows, address = big(behind, 40), behind.server.url("big.i32")
    rows.tofile(behind.local)
    if compressed:
        h5py = pytest.importorskip("h5py", reason="NOT TESTED: compressed HDF5 - h5py is not installed")
        address = str(behind.local.with_suffix(".h5"))
        with h5py.File(address, "w") as file:  # chunks that end inside blocks
            file.create_dataset("X", data=rows, chunks=(250, 300), compression="gzip", compression_opts=1)
    return started(READERS, address, behind.local, behind.cache, threads, children, times)


def is_free(root: Path, byte: int) -> bool:
    with open_ledger(str(root)) as ledger:
        return try_lock(ledger.number, byte, 1)


@pytest.mark.parametrize("compressed", [False, True], ids=["object", "compressed"])
@pytest.mark.parametrize(("threads", "children"), [(4, 0), (2, 2), (1, 4)])
def test_readers_whose_blocks_do_not_fit_together_all_get_their_rows(
    behind: Behind, threads: int, children: int, compressed: bool
) -> None:
    assert said(readers(behind, threads, children, 8 if compressed else 15, compressed)) == ("", 0)


def test_a_reader_that_is_killed_as_the_first_in_line_stops_nobody(behind: Behind) -> None:
    """Nor does its child, which has copies of all that it had open."""
    assert said(readers(behind, 1, 0, 1)) == ("", 0)  # now the cache is there, and full
    (place,) = (one for one in (behind.cache / "blocks").iterdir() if one.is_dir())
    root = place.parent
    first = started(FIRST_OF_ALL, root, place)
    assert first.stdout is not None
    child = int(first.stdout.readline())
    try:
        others = readers(behind, 2, 2, 5)
        while is_free(root, IN_LINE):  # until one of them waits to be first
            assert others.poll() is None, "all were done without waiting"
        first.kill()
        assert said(others) == ("", 0)
        os.kill(child, 0)  # still there
    finally:
        os.killpg(first.pid, signal.SIGKILL)
        first.communicate()


def test_an_interrupted_reader_leaves_the_line(tmp_path: Path) -> None:
    root, entered, over = str(tmp_path), threading.Event(), threading.Event()

    def be_first() -> None:
        with Line() as line:
            line.wait([root])
            entered.set()
            over.wait(DEADLINE)

    other = threading.Thread(target=be_first)
    other.start()
    assert entered.wait(DEADLINE)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt), Line() as line:
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            line.wait([root])
    finally:
        signal.signal(signal.SIGALRM, before)
    assert is_free(tmp_path, IN_LINE)
    assert not is_free(tmp_path, FIRST)
    over.set()
    other.join()
    assert is_free(tmp_path, FIRST)


def test_a_signal_handler_that_reads_shares_the_place_of_the_read_it_interrupted(tmp_path: Path) -> None:
    with Line() as line:
        line.wait([str(tmp_path)])
        with Line() as inner:
            inner.wait([str(tmp_path)])
            assert inner is line
        assert line.first
        assert not is_free(tmp_path, FIRST)
    assert is_free(tmp_path, FIRST)
    assert is_free(tmp_path, IN_LINE)


def test_who_is_in_line_in_a_directory_that_was_removed_waits_in_the_new_one(tmp_path: Path) -> None:
    with Line() as line:
        line.wait([str(tmp_path)])
        (tmp_path / "ledger").unlink()
        assert is_free(tmp_path, FIRST)
        line.wait([str(tmp_path)])
        assert not is_free(tmp_path, FIRST)


def test_no_maker_removes_what_the_first_in_line_keeps(tmp_path: Path) -> None:
    file = a_file(tmp_path, 16)
    disk, other = Disk(str(tmp_path)), Disk(str(tmp_path))
    disk.reserve(12, 64 * BLOCK, ())
    file.mark(0, [1] * 12, [0] * 12)
    disk.settle(12, 12)
    limit = 13 * BLOCK  # a 64th is the filesystem's own
    kept = [1, 2, 5, 6, 7, 8]
    with Line() as line:
        line.wait([str(tmp_path)])
        line.keep([(file.place, kept)])
        with pytest.raises(CrowdedError, match="expected room for 1"):
            other.reserve(4, limit, ())  # more than a quarter of the disk, which is the first one's
        other.reserve(3, limit, ())
        disk.reserve(3, limit, None)
        with pytest.raises(CrowdedError, match="expected room for 256 KiB"):
            disk.reserve(1, limit, None)  # all others are gone, or being made
        assert [block for block in range(16) if file.is_there(block)] == kept
        other.settle(3, 0)
        line.keep([(file.place, [1, 2])])
        disk.reserve(4, limit, None)
    disk.settle(7, 0)
    there = np.array([file.is_there(block) for block in range(16)])
    assert there[[1, 2]].all()
