"""Cgroup samples: recorded trees of both versions, and a real limit where this machine lets us set one."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lowtide.machine import memory_cgroup, memory_limit
from lowtide.memory import judge
from lowtide.memory.measure.cgroup_usage import sample_cgroup
from lowtide.memory.watch import watch

MIB = 1024**2


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_a_v2_cgroup_is_read_where_the_smallest_limit_is(tmp_path: Path) -> None:
    base = "sys/fs/cgroup"
    stat = "anon 10\nfile 2000\nshmem 30\nfile_dirty 4\nfile_writeback 5\nactive_file 600\n"
    stat += "inactive_file 1370\nworkingset_refault_file 8\n"
    root = write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/pod/main\n",
            "proc/self/mountinfo": "30 24 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
            f"{base}/pod/memory.max": "4096\n",
            f"{base}/pod/memory.current": "2100\n",
            f"{base}/pod/memory.stat": stat,
            f"{base}/pod/memory.events": "low 0\noom 2\noom_kill 1\n",
            f"{base}/pod/main/memory.max": "max\n",
            f"{base}/pod/main/memory.stat": "anon 1\n",
        },
    )
    cgroup = memory_cgroup(root=root)
    assert cgroup is not None
    sample = sample_cgroup(cgroup)
    assert (sample.version, sample.path, sample.limit, sample.current) == (2, "/pod", 4096, 2100)
    assert (sample.anon, sample.file, sample.shmem, sample.dirty) == (10, 2000, 30, 9)
    assert (sample.active_file, sample.inactive_file, sample.refaults, sample.oom_kills) == (600, 1370, 8, 1)
    assert sample.working_set == 2100 - 1370


def test_a_v1_cgroup_is_read_with_its_children_included(tmp_path: Path) -> None:
    base = "sys/fs/cgroup/memory/job"
    stat = "rss 1\ntotal_rss 11\ntotal_cache 22\ntotal_shmem 3\ntotal_dirty 4\ntotal_writeback 1\n"
    stat += "total_active_file 9\ntotal_inactive_file 10\ntotal_workingset_refault_file 6\n"
    root = write(
        tmp_path,
        {
            "proc/self/cgroup": "4:memory:/job\n",
            "proc/self/mountinfo": "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n",
            f"{base}/memory.limit_in_bytes": "9223372036854771712\n",
            f"{base}/memory.usage_in_bytes": "40\n",
            f"{base}/memory.stat": stat,
            f"{base}/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        },
    )
    cgroup = memory_cgroup(root=root)
    assert cgroup is not None
    sample = sample_cgroup(cgroup)
    assert (sample.version, sample.limit, sample.current, sample.anon, sample.file) == (1, None, 40, 11, 22)
    assert (sample.dirty, sample.active_file, sample.oom_kills, sample.working_set) == (5, 9, 2, 30)


def test_no_cgroup_mounted_is_none(tmp_path: Path) -> None:
    root = write(tmp_path, {"proc/self/cgroup": "0::/\n", "proc/self/mountinfo": ""})
    assert memory_cgroup(root=root) is None


@pytest.fixture
def small_cgroup() -> Iterator[Path]:
    """A memory cgroup of 64 MiB of our own, removed afterwards."""
    cgroup = memory_cgroup()
    if cgroup is None or os.geteuid() != 0:
        pytest.skip("NOT TESTED: a real cgroup limit needs root and a memory cgroup mounted")
    parent = cgroup.directories[-1] if cgroup.version == 1 else cgroup.directories[0]
    directory = parent / f"lowtide-test-{os.getpid()}"
    limit = "memory.limit_in_bytes" if cgroup.version == 1 else "memory.max"
    try:
        directory.mkdir()
        (directory / limit).write_text(str(64 * MIB))
    except OSError as problem:
        if directory.exists():
            directory.rmdir()
        pytest.skip(f"NOT TESTED: this machine refuses a memory cgroup of our own ({problem})")
    yield directory
    directory.rmdir()


CHILD = """
import os, sys, time
open(sys.argv[1] + "/cgroup.procs", "w").write(str(os.getpid()))
print("ready", flush=True)
kept = []
for _ in range(24):
    kept.append(bytearray(os.urandom(4096)) * 512)
    time.sleep(0.05)
input()
"""


@pytest.mark.slow
def test_a_real_limit_is_found_and_heap_growth_inside_it_is_called_a_risk(small_cgroup: Path) -> None:
    words = [sys.executable, "-c", CHILD, str(small_cgroup)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        limit = memory_limit(child.pid)
        with watch(pid=child.pid, interval=0.1) as watched:
            while watched.running and watched.trace.seconds < 1.8:
                time.sleep(0.05)
        child.communicate(b"\n")
    assert limit.limit == 64 * MIB
    assert limit.source.endswith(small_cgroup.name)
    last = watched.samples[-1].cgroup
    assert last is not None
    assert last.limit == 64 * MIB
    assert 16 * MIB < last.anon <= last.current <= 64 * MIB
    verdict = judge(watched.trace)
    assert verdict.grew == "anon"
    assert any("kernel OOM kill at 64.0 MiB" in risk.sentence for risk in verdict.risk)
    assert any("kubelet eviction: working set" in risk.sentence for risk in verdict.risk)
