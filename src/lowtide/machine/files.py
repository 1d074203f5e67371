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
    *(
        "nfs",
        "nfs4",
        "cifs",
        "smb3",
        "smbfs",
        "lustre",
        "9p",
        "ceph",
        "gpfs",
        "beegfs",
        "wekafs",
        "afs",
        "virtiofs",
    ),
    *("glusterfs", "orangefs", "pvfs2", "ocfs2", "gfs2", "panfs", "fuse"),
}

# Layout of struct statx (include/uapi/linux/stat.h): the mask it filled at byte 0, the two alignments at
# 152 and 156.
_STATX_BYTES, _STATX_DIOALIGN, _AT_EMPTY_PATH = 256, 0x2000, 0x1000


@dataclass(frozen=True)
class FileKind:
    """A filesystem's name and whether its files come over a network or live in memory."""

    name: str
    network: bool = False
    memory: bool = False


def file_kind(path: str | os.PathLike[str], *, root: Path = ROOT) -> FileKind:
    """The filesystem a file lies on, as /proc/self/mountinfo names it; "unknown" if that cannot be
    read."""
    return kind_named(_filesystem(path, root))


def kind_named(name: str) -> FileKind:
    """What a filesystem of that name is."""
    return FileKind(name, network=name in _NETWORK or name.startswith("fuse."), memory=name in _MEMORY)


def mounted(pid: int | None = None, *, root: Path = ROOT) -> dict[int, str]:
    """Device number -> filesystem name of every mount a process sees; empty if that cannot be read."""
    try:
        lines = _mountinfo(pid, root)
    except OSError:
        return {}
    fields = ((line.split(), line.partition(" - ")[2].split()) for line in lines)
    return {os.makedev(*map(int, before[2].split(":"))): after[0] for before, after in fields}


def tmpfs_mounts(pid: int | None = None, *, root: Path = ROOT) -> list[str]:
    """Where a process sees a tmpfs; empty if that cannot be read."""
    try:
        lines = _mountinfo(pid, root)
    except OSError:
        return []
    fields = ((line.split(), line.partition(" - ")[2].split()) for line in lines)
    return [unescape(before[4]) for before, after in fields if after[0] == "tmpfs"]


def read_ahead_bytes(path: str | os.PathLike[str], *, root: Path = ROOT) -> int | None:
    """How much the kernel reads ahead for this file's device; None if it does not say. The kernel
    fixes it when a file is opened."""
    device = _device(Path(path).stat().st_dev)
    for place in (
        f"class/bdi/{device}/read_ahead_kb",
        f"dev/block/{device}/queue/read_ahead_kb",
        f"dev/block/{device}/../queue/read_ahead_kb",
    ):
        kib = read_int(root / "sys" / place)
        if kib is not None:
            return kib * 1024
    return None


def direct_alignment(fd: int, *, root: Path = ROOT) -> int | None:
    """Bytes to which offset, length and address of an O_DIRECT read must be aligned; None if that is
    impossible or unknown."""
    told = _statx_alignment(fd) if sys.platform == "linux" else None
    if told is not None:
        return told or None
    device = _device(os.fstat(fd).st_dev)
    for place in (
        f"dev/block/{device}/queue/logical_block_size",
        f"dev/block/{device}/../queue/logical_block_size",
    ):
        block = read_int(root / "sys" / place)
        if block:
            return block
    return None


def _statx_alignment(fd: int) -> int | None:
    """statx's answer: 0 means that direct reads are impossible, None that this kernel or filesystem does not
    say."""
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


def _filesystem(path: str | os.PathLike[str], root: Path) -> str:
    try:
        lines = _mountinfo(None, root)
    except OSError:
        return "unknown"
    device = _device(Path(path).stat().st_dev)
    real = os.path.realpath(path)
    longest, name = -1, "unknown"
    for line in lines:
        before, _, after = line.partition(" - ")
        fields, kind = before.split(), after.split()[0]
        if fields[2] == device:
            return kind
        # On btrfs and overlayfs a file's device differs from its mount's: there the mount point decides.
        point = unescape(fields[4])
        if (real == point or real.startswith(point.rstrip("/") + "/")) and len(point) >= longest:
            longest, name = len(point), kind
    return name


def _mountinfo(pid: int | None, root: Path) -> list[str]:
    return (root / "proc" / str(pid or "self") / "mountinfo").read_text().splitlines()


def _device(number: int) -> str:
    return f"{os.major(number)}:{os.minor(number)}"
