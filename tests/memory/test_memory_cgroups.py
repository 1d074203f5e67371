"""Cgroup samples: recorded trees of both versions, and a real limit where this machine lets us set one."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cgroups import memory_cgroup_of

from lowtide.machine import memory_cgroup, memory_limit
from lowtide.memory import Sample, judge
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


# As Linux 6.12 writes it for a pod; what is not read was left out.
STAT = """\
anon 104857600
file 209715200
kernel 31457280
kernel_stack 1048576
pagetables 2097152
sec_pagetables 0
percpu 1048576
sock 4194304
vmalloc 0
shmem 73400320
zswap 0
file_mapped 10485760
file_dirty 0
file_writeback 0
inactive_anon 178257920
active_anon 0
inactive_file 31457280
active_file 104857600
unevictable 0
slab_reclaimable 16777216
slab_unreclaimable 8388608
slab 25165824
workingset_refault_file 0
"""


def test_memory_high_slows_down_and_memory_max_kills_and_what_is_in_no_process_has_its_parts(tmp_path: Path) -> None:
    base = "sys/fs/cgroup"
    root = write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/pod/main\n",
            "proc/self/mountinfo": "30 24 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
            f"{base}/pod/memory.max": f"{1000 * MIB}\n",
            f"{base}/pod/memory.high": f"{400 * MIB}\n",
            f"{base}/pod/memory.current": f"{404 * MIB}\n",
            f"{base}/pod/memory.stat": STAT,
            f"{base}/pod/memory.events": "low 0\nhigh 812\nmax 3\noom 0\noom_kill 0\n",
            f"{base}/pod/main/memory.max": "max\n",
            f"{base}/pod/main/memory.high": "max\n",
            f"{base}/pod/main/memory.stat": "anon 1\n",
        },
    )
    cgroup = memory_cgroup(root=root)
    assert cgroup is not None
    sample = sample_cgroup(cgroup)
    assert (sample.limit, sample.high, sample.throttled, sample.refused) == (1000 * MIB, 400 * MIB, 812, 3)
    assert (sample.slab, sample.sockets, sample.kernel_other) == (24 * MIB, 4 * MIB, 4 * MIB)
    assert sample.unlisted == (404 - 100 - 200 - 30 - 4) * MIB
    tree = Sample(0.0, 100 * MIB, 0, 0, 0, 2 * MIB, 10 * MIB, cgroup=sample)
    assert dict(tree.without_process()) == {
        "closed tmpfs files": 60 * MIB,
        "slab": 24 * MIB,
        "sockets": 4 * MIB,
        "pinned pages": 70 * MIB,
        "other kernel memory": 4 * MIB,
    }
    assert tree.in_no_process == 162 * MIB


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
    with memory_cgroup_of(64 * MIB, "a real cgroup limit") as directory:
        yield directory


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
