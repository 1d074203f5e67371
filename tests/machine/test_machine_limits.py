"""Limits: recorded cgroup trees of both versions, and the machine these tests run on."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lowtide.machine import available_memory, memory_cgroup, memory_limit, room_for_cache, total_memory

MIB = 1024**2
MEMINFO = """MemTotal:       16384 kB
MemFree:         1024 kB
MemAvailable:    8192 kB
Active(anon):    2048 kB
Inactive(anon):  1024 kB
Unevictable:       64 kB
HugePages_Total:       7
"""


def tree(root: Path, *, membership: str, mounts: str, files: dict[str, str]) -> Path:
    """A stand-in for "/" with the given cgroup files."""
    contents = {
        "proc/self/cgroup": membership,
        "proc/self/mountinfo": mounts,
        "proc/meminfo": MEMINFO.replace("16384 kB", f"{16 * 1024**2} kB"),  # a machine of 16 GiB
        **files,
    }
    for name, text in contents.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


V2_MOUNT = "30 24 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
V1_MOUNT = "35 31 0:32 {root} /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"
V2_STAT = "anon 700\ninactive_anon 500\nactive_anon 300\nunevictable 100\nslab_unreclaimable 30\nfile 90000\n"


def test_the_smallest_limit_over_all_ancestors_of_a_v2_cgroup_wins(tmp_path: Path) -> None:
    base = "sys/fs/cgroup/pods/pod7"
    root = tree(
        tmp_path,
        membership="0::/pods/pod7/main\n",
        mounts=V2_MOUNT,
        files={
            f"{base}/main/memory.max": "max\n",
            f"{base}/main/memory.high": "max\n",
            f"{base}/main/memory.stat": "anon 1\n",
            f"{base}/memory.max": f"{512 * MIB}\n",
            f"{base}/memory.high": f"{400 * MIB}\n",
            f"{base}/memory.stat": V2_STAT,
            "sys/fs/cgroup/pods/memory.max": f"{2048 * MIB}\n",
        },
    )
    limit = memory_limit(root=root)
    assert limit.limit == 400 * MIB
    assert limit.source == "cgroup v2 /pods/pod7"
    assert limit.unreclaimable == 500 + 300 + 100 + 30
    assert room_for_cache(root=root)[0] == 400 * MIB - 930


def test_a_v1_limit_is_read_where_memory_has_its_own_hierarchy_even_beside_v2(tmp_path: Path) -> None:
    base = "sys/fs/cgroup/memory"
    root = tree(
        tmp_path,
        membership="4:memory:/slurm/job1\n3:cpuset:/\n0::/user.slice\n",
        mounts=V1_MOUNT.format(root="/") + V2_MOUNT.replace("/sys/fs/cgroup", "/sys/fs/cgroup/unified"),
        files={
            f"{base}/memory.limit_in_bytes": "9223372036854771712\n",
            f"{base}/slurm/memory.limit_in_bytes": f"{300 * MIB}\n",
            f"{base}/slurm/memory.stat": "total_inactive_anon 10\ntotal_active_anon 20\ntotal_unevictable 5\n",
            f"{base}/slurm/job1/memory.limit_in_bytes": "9223372036854771712\n",
            f"{base}/slurm/job1/memory.stat": "cache 1\n",
            "sys/fs/cgroup/unified/user.slice/memory.max": f"{MIB}\n",
        },
    )
    limit = memory_limit(root=root)
    assert (limit.limit, limit.source, limit.unreclaimable) == (300 * MIB, "cgroup v1 /slurm", 35)


def test_hierarchical_memory_limit_tells_of_ancestors_that_are_not_mounted_here(tmp_path: Path) -> None:
    """A container that mounts its own subtree only, and whose cgroup path lies above the mount's root."""
    base = "sys/fs/cgroup/memory"
    root = tree(
        tmp_path,
        membership="4:memory:/docker/abc\n",
        mounts=V1_MOUNT.format(root="/docker/abc"),
        files={
            f"{base}/memory.limit_in_bytes": "9223372036854771712\n",
            f"{base}/memory.stat": f"hierarchical_memory_limit {123 * MIB}\n",
        },
    )
    assert memory_limit(root=root).limit == 123 * MIB


def test_a_path_outside_the_cgroup_namespace_falls_back_to_what_is_mounted(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        membership="0::/../../other\n",
        mounts=V2_MOUNT,
        files={"sys/fs/cgroup/memory.max": f"{77 * MIB}\n", "sys/fs/cgroup/memory.stat": "anon 1\n"},
    )
    cgroup = memory_cgroup(root=root)
    assert cgroup is not None
    assert cgroup.directories == (root / "sys/fs/cgroup",)
    assert memory_limit(root=root).limit == 77 * MIB


def test_a_mount_point_with_a_blank_in_its_name_is_found(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        membership="0::/\n",
        mounts=V2_MOUNT.replace("/sys/fs/cgroup", "/sys/my\\040groups"),
        files={"sys/my groups/memory.max": f"{5 * MIB}\n", "sys/my groups/memory.stat": "anon 1\n"},
    )
    assert memory_limit(root=root).limit == 5 * MIB


def test_without_cgroups_the_machine_is_the_limit(tmp_path: Path) -> None:
    root = tree(tmp_path, membership="0::/\n", mounts="", files={})
    limit = memory_limit(root=root)
    assert memory_cgroup(root=root) is None
    assert (limit.limit, limit.source) == (16 * 1024 * MIB, "machine")
    assert limit.unreclaimable == (2048 + 1024 + 64) * 1024
    assert available_memory(root=root) == 8 * MIB


def test_a_machine_smaller_than_its_cgroups_limit_is_the_limit(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        membership="0::/\n",
        mounts=V2_MOUNT,
        files={"sys/fs/cgroup/memory.max": f"{64 * 1024 * MIB}\n", "sys/fs/cgroup/memory.stat": "anon 1\n"},
    )
    assert memory_limit(root=root).source == "machine"


def test_without_proc_sysconf_still_gives_the_machines_size(tmp_path: Path) -> None:
    assert memory_limit(root=tmp_path).limit == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 0 < available_memory(root=tmp_path) <= total_memory()


def test_here_what_is_left_lies_between_nothing_and_the_machine() -> None:
    limit = memory_limit()
    room, why = room_for_cache()
    assert limit.limit is not None
    assert 0 < limit.limit <= total_memory()
    assert 0 < limit.unreclaimable < limit.limit
    assert 0 < room <= limit.limit
    assert limit.source in why or "machine" in why
    assert available_memory() <= total_memory()


def test_here_the_cgroup_of_this_process_holds_its_pid() -> None:
    cgroup = memory_cgroup()
    if cgroup is None:
        pytest.skip("NOT TESTED: no memory cgroup is mounted on this machine")
    pids = (cgroup.directories[0] / "cgroup.procs").read_text().split()
    assert str(os.getpid()) in pids
    assert memory_cgroup(os.getpid()) == cgroup
