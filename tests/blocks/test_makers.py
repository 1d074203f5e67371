"""Makers: one per process, gone with it, killed and forked at any moment, and no block made twice on a machine."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from tests.blocks.conftest import Behind

import lowtide
from lowtide.blocks.asking import MAKER
from lowtide.blocks.block_file import BLOCK, BlockFile, make_files
from lowtide.blocks.disk import Disk
from lowtide.blocks.maker import BlockJob, Maker, _Pending, _QueuedRun
from lowtide.blocks.remote import Places

READS = """
    import os, sys, time
    import numpy as np, lowtide
    from lowtide.blocks.asking import MAKER
    address, cache, local = sys.argv[1:4]
    a, rows = lowtide.open(address, cache_dir=cache), np.load(local)
"""


def reader(behind: Behind, program: str) -> subprocess.Popen[str]:
    code = textwrap.dedent(READS) + textwrap.dedent(program)
    arguments = [behind.address, str(behind.cache), str(behind.local)]
    return subprocess.Popen([sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, text=True)


def gone(pid: int, seconds: float = 5.0) -> bool:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state == "Z":
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize("many", [4, pytest.param(64, marks=pytest.mark.remote)])  # 64: some minutes on two cores
def test_many_processes_fetch_each_block_once(behind: Behind, many: int) -> None:
    behind.open().close()
    MAKER.close()
    behind.server.seen.gets.clear()
    behind.server.faults.latency = 0.02
    program = """
        seed = int.from_bytes(os.urandom(4), 'little')
        for x, y in lowtide.together(a, lowtide.open(local)).shuffled(512, seed=seed):
            assert np.array_equal(x, y)
    """
    readers = [reader(behind, program) for _ in range(many)]
    assert [one.wait() for one in readers] == [0] * many
    for one in readers:
        assert one.stdout is not None
        one.stdout.close()
    blocks = [
        block
        for _, first, size in behind.server.seen.gets
        for block in range(first // 2**18, -(-(first + size) // 2**18))
    ]
    assert sorted(set(blocks) - {0}) == list(range(1, 20))
    assert len([block for block in blocks if block]) == 19  # the first one tells each of them what the object is


def test_a_maker_ends_with_its_reader_also_when_that_is_killed(behind: Behind) -> None:
    for end in ("os.kill(os.getpid(), 9)", "sys.exit()", "os._exit(0)"):
        program = f"a[30_000]; print(MAKER.pid, flush=True); {end}"
        with reader(behind, program) as one:
            assert one.stdout is not None
            pid = int(one.stdout.readline())
        assert gone(pid)


def test_a_maker_that_is_killed_is_replaced_and_nothing_is_lost(behind: Behind) -> None:
    remote = behind.open()
    behind.server.faults.latency = 0.05
    chance = random.Random(5)
    got = []
    for rows in remote.chunks(2_000):
        if chance.random() < 0.5 and MAKER.pid is not None:
            os.kill(MAKER.pid, signal.SIGKILL)
        got.append(np.array(rows))
    np.testing.assert_array_equal(np.concatenate(got), behind.rows)


def test_a_maker_that_always_dies_is_an_error_and_not_a_hang(behind: Behind, monkeypatch: pytest.MonkeyPatch) -> None:
    remote = behind.open()
    MAKER.close()
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(lowtide.ReadError, match="expected its maker to make blocks, got it ended by status 1"):
        remote[30_000]


def test_readers_killed_at_any_moment_leave_only_whole_blocks(behind: Behind) -> None:
    behind.server.faults.latency = 0.01
    chance = random.Random(11)
    for _ in range(4):
        with reader(behind, "print('reads', flush=True)\nfor rows in a.shuffled(64): pass") as one:
            assert one.stdout is not None
            one.stdout.readline()
            time.sleep(chance.random() * 0.2)
            one.kill()
    np.testing.assert_array_equal(behind.open()[:], behind.rows)


def test_a_forked_child_has_a_maker_of_its_own(behind: Behind) -> None:
    behind.server.faults.latency = 0.02
    remote = behind.open()
    batches = remote.shuffled(128, seed=2)
    next(batches)  # blocks are under way now
    children = []
    for number in range(3):
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                ours = [np.array(rows) for rows in batches]
                whole = np.concatenate(list(remote.chunks(5_000)))
                status = int(not (np.array_equal(whole, behind.rows) and len(np.concatenate(ours)) == 40_000 - 128))
            finally:
                MAKER.close()
                os._exit(status)
        children.append(pid)
        next(batches)
        if number == 1:
            batches = remote.shuffled(128, seed=2)
            next(batches)
    np.testing.assert_array_equal(np.concatenate(list(remote.chunks(5_000))), behind.rows)
    statuses = [os.waitpid(pid, 0)[1] for pid in children]
    assert statuses[0] == 0 and statuses[2] == 0


def test_spawned_processes_read_on(behind: Behind) -> None:
    behind.server.faults.latency = 0.02
    remote = behind.open()
    batches = remote.shuffled(128, seed=2)
    next(batches)  # blocks are under way now
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        under_way = pool.map_async(total, [remote, remote])
        ours = sum(int(rows.sum()) for rows in remote.chunks(5_000))
        assert under_way.get() == [ours, ours] == [int(behind.rows.sum())] * 2


def total(array: lowtide.Array) -> int:
    return sum(int(rows.sum()) for rows in array.chunks(3_000))


def test_what_makers_hold_stays_small_for_any_object(tmp_path: Path, behind: Behind) -> None:
    """Anonymous memory of maker and reader over an object of 96 MiB, against holding it: the negative control."""
    behind.server.objects["big.bin"] = bytes(96 * 2**20)
    program = f"""
        def anon(pid):
            lines = open(f'/proc/{{pid}}/status').read().splitlines()
            return next(int(line.split()[1]) for line in lines if line.startswith('RssAnon')) // 1024
        stated = dict(dtype='uint8', shape=(-1, 4096), cache_dir=cache, budget='16MiB')
        big = lowtide.open({behind.server.url("big.bin")!r}, **stated)
        before, most = anon('self'), 0
        for rows in big.shuffled(512):
            most = max(most, anon('self') - before + anon(MAKER.pid))
        held = np.full(big.shape, 1, np.uint8)
        print(most, anon('self') - before + anon(MAKER.pid))
    """
    with reader(behind, program) as one:
        assert one.stdout is not None
        most, control = map(int, one.stdout.readline().split())
    assert most <= 16 + 64 < control


def test_bodies_are_received_in_the_order_of_their_requests() -> None:
    places, order = Places(1), list[int]()
    numbers = [places.number() for _ in range(4)]

    def receive(number: int) -> None:
        with places.one(number):
            order.append(number)

    with places.one(numbers[0]):
        threads = [threading.Thread(target=receive, args=(number,)) for number in reversed(numbers[1:])]
        for number, thread in enumerate(threads, 1):
            thread.start()
            while len(places._waiting) < number:
                time.sleep(0.001)
    for thread in threads:
        thread.join()
    assert order == numbers[1:]
    receive(numbers[0])  # the place is free again


def test_blocks_on_both_sides_of_one_that_was_made_alone_are_made_at_the_same_time(tmp_path: Path) -> None:
    make_files(str(tmp_path), 8 * BLOCK)
    job = BlockJob(BlockFile(str(tmp_path), 8 * BLOCK), None, Disk(str(tmp_path)), None)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        maker = Maker(ours)
        maker._pending = {(str(tmp_path), block): _Pending(False, running=block in (2, 5)) for block in range(7)}
        taken = [maker._taken(_QueuedRun((True, 0), job, list(range(8))))]
        while maker._queue:
            taken.append(maker._taken(maker._queue.pop()))
    assert taken == [[0, 1], [3, 4], [6]]
