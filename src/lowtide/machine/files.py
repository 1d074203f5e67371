"""What a file is stored on: its filesystem, the kernel's read-ahead for it, the alignment that direct reads need.

Each question is about the file itself, not about the disk it seems to be on. Cost: one stat and one small read each;
statx through ctypes. Anything the system does not tell is None (or the name "unknown"), never a guess. macOS: all three
are unknown.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from lowtide.machine.cgroups import ROOT, read_int, unescape

_MEMORY = {"tmpfs", "ramfs", "devtmpfs", "hugetlbfs"}
_NETWORK = {
    *("nfs", "nfs4", "cifs", "smb3", "smbfs", "lustre", "9p", "ceph", "gpfs", "beegfs", "wekafs", "afs", "virtiofs"),
    *("glusterfs", "orangefs", "pvfs2", "ocfs2", "gfs2", "panfs", "fuse"),
}

# Layout of struct statx (include/uapi/linux/stat.h): the mask it filled at byte 0, the two alignments at 152 and 156.
_STATX_BYTES, _STATX_DIOALIGN, _AT_EMPTY_PATH = 256, 0x2000, 0x1000


@dataclass(frozen=True)
class FileKind:
    """A filesystem's name and whether its files come over a network or live in memory."""

    name: str
    network: bool = False
    memory: bool = False


def file_kind(path: str | os.PathLike[str], *, root: Path = ROOT) -> FileKind:
    """The filesystem a file lies on, as /proc/self/mountinfo names it; "unknown" if that cannot be read."""
    device = _device(Path(path).stat().st_dev)
    real = os.path.realpath(path)
    longest, name = -1, "unknown"
    for number, point, kind in _mounts(None, root):
        if number == device:
            return kind_named(kind)
        # On btrfs and overlayfs a file's device differs from its mount's: there the mount point decides.
        if (real == point or real.startswith(point.rstrip("/") + "/")) and len(point) >= longest:
            longest, name = len(point), kind
    return kind_named(name)


def kind_named(name: str) -> FileKind:
    """What a filesystem of that name is."""
    return FileKind(name, network=name in _NETWORK or name.startswith("fuse."), memory=name in _MEMORY)


def mounted(pid: int | None = None, *, root: Path = ROOT) -> dict[int, str]:
    """Device number -> filesystem name of every mount a process sees; empty if that cannot be read."""
    return {os.makedev(*map(int, number.split(":"))): kind for number, _, kind in _mounts(pid, root)}


def tmpfs_mounts(pid: int | None = None) -> list[str]:
    """Where a process sees a tmpfs; empty if that cannot be read."""
    return [point for _, point, kind in _mounts(pid, ROOT) if kind == "tmpfs"]


def read_ahead_bytes(path: str | os.PathLike[str], *, root: Path = ROOT) -> int | None:
    """How much the kernel reads ahead for this file's device; None if it does not say. The kernel fixes it when a file
    is opened."""
    device = _device(Path(path).stat().st_dev)
    kib = read_int(root / f"sys/class/bdi/{device}/read_ahead_kb")
    kib = _of_queue(device, "read_ahead_kb", root) if kib is None else kib
    return None if kib is None else kib * 1024


def direct_alignment(fd: int) -> int | None:
    """Bytes to which offset, length and address of an O_DIRECT read must be aligned; None if impossible or unknown."""
    told = _statx_alignment(fd) if sys.platform == "linux" else None
    if told is not None:
        return told or None
    return _of_queue(_device(os.fstat(fd).st_dev), "logical_block_size", ROOT) or None


def _of_queue(device: str, name: str, root: Path) -> int | None:
    """A setting of a block device, or of the disk that it is a partition of."""
    found = read_int(root / f"sys/dev/block/{device}/queue/{name}")
    return read_int(root / f"sys/dev/block/{device}/../queue/{name}") if found is None else found


def _statx_alignment(fd: int) -> int | None:
    """statx's answer: 0 means that direct reads are impossible, None that this kernel or filesystem does not say."""
    import ctypes

    statx = getattr(ctypes.CDLL(None, use_errno=True), "statx", None)
    if statx is None:
        return None
    answer = ctypes.create_string_buffer(_STATX_BYTES)
    if statx(ctypes.c_int(fd), b"", ctypes.c_int(_AT_EMPTY_PATH), ctypes.c_uint(_STATX_DIOALIGN), answer) != 0:
        return None

    def field(place: int) -> int:
        return int.from_bytes(answer.raw[place : place + 4], sys.byteorder)

    if not field(0) & _STATX_DIOALIGN:
        return None
    memory, offset = field(152), field(156)
    return max(memory, offset) if memory and offset else 0


def _mounts(pid: int | None, root: Path) -> list[tuple[str, str, str]]:
    """Device, mount point and filesystem of every mount a process sees; none if that cannot be read."""
    try:
        lines = (root / "proc" / str(pid or "self") / "mountinfo").read_text().splitlines()
    except OSError:
        return []
    halves = ((before.split(), after.split()) for before, _, after in (line.partition(" - ") for line in lines))
    return [(fields[2], unescape(fields[4]), kind) for fields, (kind, *_) in halves]


def _device(number: int) -> str:
    return f"{os.major(number)}:{os.minor(number)}"
