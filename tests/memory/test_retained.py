"""Heap that was freed and is kept: asked of the allocator from inside and from outside, and given back."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

MIB = 1024**2

if not hasattr(__import__("ctypes").CDLL(None), "mallinfo2"):
    pytest.skip(
        "NOT TESTED: retained heap. This system's C library is not glibc 2.33 or later.", allow_module_level=True
    )

KEEPS = """
import ctypes, json, os, sys, threading
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
def fill(blocks):
    for _ in range({blocks}):
        block = libc.malloc(ctypes.c_size_t({size}))
        ctypes.memset(block, 1, {size})
        blocks.append(block)
    blocks.append(libc.malloc(ctypes.c_size_t({size})))
blocks = [[] for _ in range({arenas})]
threads = [threading.Thread(target=fill, args=(each,)) for each in blocks[1:]]
fill(blocks[0])
for thread in threads: thread.start()
for thread in threads: thread.join()
if {free}:
    for each in blocks:
        for block in each[:-1]: libc.free(ctypes.c_void_p(block))
"""
OUTSIDE = "print('ready', flush=True); input()"
INSIDE = """
import lowtide
from lowtide.memory.measure.counters import TreeCounters
counters = TreeCounters(os.getpid())
before = counters.sample(last=True).retained
freed = lowtide.release()
print(json.dumps([before, counters.sample(last=True).retained, freed.freed, str(freed)]))
"""


def kept_as_seen_from_outside(program: str) -> int:
    from lowtide.memory.measure.counters import TreeCounters

    with subprocess.Popen([sys.executable, "-c", program + OUTSIDE], stdin=-1, stdout=-1) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        sample = TreeCounters(child.pid).sample(last=True)
        child.communicate(b"\n")
    assert sample is not None
    return sample.retained


@pytest.mark.parametrize(("size", "blocks"), [(100_000, 640), (4_000, 16_000), (600, 100_000)])
def test_freed_heap_is_seen_from_outside_and_live_heap_is_not(size: int, blocks: int) -> None:
    whole = size * blocks
    freed = KEEPS.format(size=size, blocks=blocks, arenas=1, free=True)
    assert kept_as_seen_from_outside(freed) == pytest.approx(whole, rel=0.1)
    live = KEEPS.format(size=size, blocks=blocks, arenas=1, free=False)
    assert kept_as_seen_from_outside(live) < 0.05 * whole  # the control: the same bytes, in use


def test_freed_heap_of_other_threads_arenas_is_seen_too() -> None:
    program = KEEPS.format(size=100_000, blocks=300, arenas=4, free=True)
    assert kept_as_seen_from_outside(program) > 0.8 * 4 * 300 * 100_000


@pytest.mark.parametrize("frees", [True, False])
def test_the_mark_of_the_free_lists_moves_when_the_program_frees_and_not_before(frees: bool) -> None:
    """A heap's size does not tell: it stays as large."""
    from lowtide.memory.measure.allocator import account_of, heap_mark
    from lowtide.memory.measure.smaps import read_detail

    live = KEEPS.format(size=4_000, blocks=8_000, arenas=1, free=False)
    free = "for block in blocks[0][:-1:2]: libc.free(ctypes.c_void_p(block))" if frees else "pass"
    program = live + "os.write(1, b'ready\\n'); os.read(0, 1)\n" + free + "\nos.write(1, b'done\\n'); os.read(0, 1)"
    with subprocess.Popen([sys.executable, "-c", program], stdin=-1, stdout=-1) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        account = account_of(child.pid, read_detail(child.pid, frozenset(), alone=True).heap)
        assert account is not None
        assert account.mark is not None
        assert heap_mark(child.pid, account.arenas) == account.mark
        child.stdin.write(b"1")
        child.stdin.flush()
        assert child.stdout.readline() == b"done\n"
        moved = heap_mark(child.pid, account.arenas) != account.mark
        child.communicate(b"1")
    assert moved is frees


def test_release_without_an_argument_gives_freed_heap_back_and_says_how_much() -> None:
    program = KEEPS.format(size=100_000, blocks=640, arenas=1, free=True)
    done = subprocess.run([sys.executable, "-c", program + INSIDE], capture_output=True, text=True, check=True)
    before, after, freed, text = json.loads(done.stdout)
    assert before == pytest.approx(64_000_000, rel=0.1)
    assert after < 8 * MIB
    assert freed > 0.8 * 64_000_000
    assert text.startswith("freed ")
    assert " of heap (" in text
    live = KEEPS.format(size=100_000, blocks=640, arenas=1, free=False)
    done = subprocess.run([sys.executable, "-c", live + INSIDE], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)[2] < 8 * MIB  # the control: nothing was free


def test_the_memory_of_another_user_is_not_read_and_that_is_said() -> None:
    if os.geteuid() != 0:
        pytest.skip("NOT TESTED: becoming another user needs root")
    program = (
        "import json, os, sys; from lowtide.memory.measure.counters import TreeCounters\n"
        "os.setgid(65534); os.setuid(65534); c = TreeCounters(int(sys.argv[1]))\n"
        "s = c.sample(last=True); print(json.dumps([s.retained, c.missing]))"
    )
    keeps = KEEPS.format(size=100_000, blocks=640, arenas=1, free=True)
    with subprocess.Popen([sys.executable, "-c", keeps + OUTSIDE], stdin=-1, stdout=-1) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        done = subprocess.run(
            [sys.executable, "-c", program, str(child.pid)], capture_output=True, text=True, check=True
        )
        child.communicate(b"\n")
    retained, missing = json.loads(done.stdout)
    assert retained == 0
    assert {"sharing", "retained"} <= set(missing)
