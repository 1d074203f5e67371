"""What lies under a file: filesystem, read-ahead, alignment for direct reads."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import pytest

from lowtide.machine import direct_alignment, file_kind, kind_named, mounted, read_ahead_bytes


def test_dev_shm_lives_in_memory() -> None:
    if "/dev/shm" not in {line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()}:
        pytest.skip("NOT TESTED: a real filesystem in memory - /dev/shm is not mounted")
    assert file_kind("/dev/shm").memory


def test_tmpfs_lives_in_memory_and_a_network_mount_is_called_one() -> None:
    assert kind_named("tmpfs").memory
    for name in ("nfs", "nfs4", "cifs", "smb3", "lustre", "fuse.sshfs", "9p", "ceph", "gpfs", "beegfs", "wekafs"):
        assert kind_named(name).network, name
    assert kind_named("ext4") == kind_named("ext4").__class__("ext4", network=False, memory=False)


def test_the_mount_that_holds_the_file_decides_where_devices_do_not_match(tmp_path: Path) -> None:
    """btrfs and overlayfs give files another device number than their mount has."""
    data = tmp_path / "mnt/data"
    data.mkdir(parents=True)
    (tmp_path / "proc/self").mkdir(parents=True)
    lines = ["1 0 9999:1 / / rw - ext4 /dev/x rw", f"2 1 9999:2 / {data} rw - nfs4 server:/x rw"]
    (tmp_path / "proc/self/mountinfo").write_text("\n".join(lines) + "\n")
    assert file_kind(data, root=tmp_path).name == "nfs4"
    assert file_kind(data, root=tmp_path).network
    assert file_kind(tmp_path, root=tmp_path).name == "ext4"


def test_without_proc_the_filesystem_is_unknown_and_nothing_is_claimed(tmp_path: Path) -> None:
    kind = file_kind(tmp_path, root=tmp_path)
    assert (kind.name, kind.network, kind.memory) == ("unknown", False, False)
    assert mounted(root=tmp_path) == {}


def test_read_ahead_is_read_from_the_device_or_from_the_disk_a_partition_is_on(tmp_path: Path) -> None:
    number = tmp_path.stat().st_dev
    device = f"{os.major(number)}:{os.minor(number)}"
    root = tmp_path / "root"
    assert read_ahead_bytes(tmp_path, root=root) is None
    partition = root / "sys/devices/disk/part"
    partition.mkdir(parents=True)
    (root / "sys/devices/disk/queue").mkdir()
    (root / "sys/devices/disk/queue/read_ahead_kb").write_text("128\n")
    (root / "sys/dev/block").mkdir(parents=True)
    (root / f"sys/dev/block/{device}").symlink_to(partition)
    assert read_ahead_bytes(tmp_path, root=root) == 128 * 1024
    (root / f"sys/class/bdi/{device}").mkdir(parents=True)
    (root / f"sys/class/bdi/{device}/read_ahead_kb").write_text("4096\n")
    assert read_ahead_bytes(tmp_path, root=root) == 4096 * 1024


def test_the_alignment_it_tells_is_enough_for_a_direct_read(disk_path: Path) -> None:
    path = disk_path / "direct"
    path.write_bytes(os.urandom(64 * 1024))
    with path.open("rb") as file:
        alignment = direct_alignment(file.fileno())
    if alignment is None:
        pytest.skip(f"NOT TESTED: {file_kind(path).name} offers no direct reads here")
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    buffer = mmap.mmap(-1, 64 * 1024)
    try:
        view = memoryview(buffer)[alignment : 2 * alignment]
        assert os.preadv(fd, [view], alignment) == alignment
        assert bytes(view) == path.read_bytes()[alignment : 2 * alignment]
        view.release()
    finally:
        os.close(fd)
        buffer.close()
