"""A block file: a sparse local file, and a mark for each of its blocks that says whether it is there.

    PLACE/data: the bytes | marks: uint32 for each block | hints: crc32s, then when needed, then next uses | boot

A mark counts how often its block was made or taken away: odd, the block is there; even, it is not. So whoever read a
block, and finds the same odd mark before and after, has read that block and nothing else, without a lock. A block is
written first and marked afterwards, so nothing half-made is ever read, whenever a process is killed. Whoever makes a
block holds a lock on its mark (of the open file description: it ends with its holder).

If the machine stops, bytes that were never synced may be lost although their marks are not. So marks from an earlier
boot are withdrawn when the file is next opened, and a block whose bytes still match their checksum is marked again
without being made.

Costs 16 bytes per block of 256 KiB. Marks and hints of neighbours lie together, so that a run of blocks costs as many
calls as one of them. Knows no addresses, formats or decoders; imports nothing heavy.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import os
import struct
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from lowtide.errors import ReadError
from lowtide.machine import Descriptor, file_kind, owned

BLOCK = 256 * 1024
MARK = struct.Struct("<I")
# Of hints: checksums of the bytes (0: none kept), when last needed, when next used (0: unknown).
CHECKSUM, NEEDED, NEXT_USE, HINTS = range(4)
FILES = ("data", "marks", "hints")
# Bytes that no file has, for locks: of the ledger those of the line (first_in_line.py), of marks one for each block,
# which the first in line locks while it needs that block.
IN_LINE, FIRST, KEPT = 1 << 40, (1 << 40) + 1, 1 << 40
KEEP_SIZE, PUNCH_HOLE = 0x01, 0x02  # modes of fallocate
_BOOT = "/proc/sys/kernel/random/boot_id"
_HAS_OFD = hasattr(fcntl, "F_OFD_SETLK")


def blocks_of(size: int) -> int:
    return -(-size // BLOCK)


def boot_id() -> str:
    """Which boot of this machine it is; empty where the system does not say: then nothing outlives the process."""
    try:
        return Path(_BOOT).read_text().strip()
    except OSError:
        return ""


def try_lock(number: int, start: int, length: int, *, shared: bool = False) -> bool:
    """Take a lock on bytes of an open file, if nobody else has one."""
    return _locked(number, fcntl.F_RDLCK if shared else fcntl.F_WRLCK, start, length)


def wait_for_bytes(number: int, start: int, length: int, *, shared: bool = False) -> None:
    """Take such a lock when all others have let go of it."""
    _locked(number, fcntl.F_RDLCK if shared else fcntl.F_WRLCK, start, length, wait=True)


def unlock(number: int, start: int, length: int) -> None:
    _locked(number, fcntl.F_UNLCK, start, length)


def _locked(number: int, kind: int, start: int, length: int, wait: bool = False) -> bool:
    if not _HAS_OFD:
        return True  # not Linux: two processes may make a block twice, never half
    wanted = struct.pack("hhqqi4x", kind, os.SEEK_SET, start, length, 0)
    try:
        fcntl.fcntl(number, fcntl.F_OFD_SETLKW if wait else fcntl.F_OFD_SETLK, wanted)
    except OSError as problem:
        if problem.errno in (errno.EAGAIN, errno.EACCES):
            return False
        if problem.errno not in (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL):
            raise
    return True


def fast_checksum() -> Callable[[Any, int], int]:
    """zlib's crc32, by the native engine where that is built: a tenth of the time. Without the engine's package, which
    imports NumPy: the maker does without."""
    import zlib  # here, all of it: the reading process needs none
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    spec = PathFinder.find_spec("_core", [str(Path(__file__).parents[1] / "engine")])
    if spec is None or spec.loader is None:  # not built
        return zlib.crc32
    core = module_from_spec(spec)
    try:
        spec.loader.exec_module(core)
    except ImportError:  # built for another interpreter
        return zlib.crc32
    found: Callable[[Any, int], int] = zlib.crc32 if core.crc32(b"", 0) is None else core.crc32
    return found


@functools.cache
def _libc() -> Any:
    import ctypes  # here: the reading process needs none of it

    found = ctypes.CDLL(None, use_errno=True)
    found.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    return found


def fallocate(number: int, mode: int, start: int, length: int) -> None:
    """Linux's call of that name; nothing where there is none or it is refused."""
    if hasattr(_libc(), "fallocate"):
        _libc().fallocate(number, mode, start, length)


def open_ledger(root: str) -> Descriptor:
    """The file that all block files of a directory share: ``disk.py`` keeps it, readers look at its first number."""
    return owned(f"{root}/ledger", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)


def open_marks(place: str) -> Descriptor:
    """The marks of a block file, open once more: with locks of their own."""
    return owned(f"{place}/marks", os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)


def taken_away(ledger: Descriptor) -> int:
    """How many times blocks were removed. While this is unchanged, the bytes of every block whose mark was found after
    it was read are there."""
    return int.from_bytes(os.pread(ledger.number, 8, 0), "little")


def note_taken(ledger: Descriptor) -> None:
    """Only the holder of the ledger's lock may do so: two at once would count one."""
    os.pwrite(ledger.number, (taken_away(ledger) + 1).to_bytes(8, "little"), 0)


class BlockFile:
    """An open block file of ``size`` bytes; its descriptors close with it."""

    def __init__(self, place: str, size: int) -> None:
        self.place, self.size, self.count = place, size, blocks_of(size)
        self.data, self.marks, self.hints = (self._opened(name) for name in FILES)
        self._allots: bool | None = None  # not known yet

    def _opened(self, name: str) -> Descriptor:
        return owned(f"{self.place}/{name}", os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)

    @property
    def alive(self) -> bool:
        """Whether it still has its name and length: somebody may have removed or damaged the directory."""
        status, marks = os.fstat(self.data.number), os.fstat(self.marks.number)
        whole = self.has_its_length and marks.st_size == self.count * MARK.size
        return whole and status.st_nlink > 0 and marks.st_nlink > 0

    @property
    def has_its_length(self) -> bool:
        return os.fstat(self.data.number).st_size == self.size

    def read_marks(self, first: int = 0, count: int | None = None) -> array[int]:
        """The marks of these blocks (all), as they are now."""
        return self._numbers(self.marks, first, self.count if count is None else count)

    def hints_of(self, kind: int, first: int = 0, count: int | None = None) -> array[int]:
        return self._numbers(self.hints, kind * self.count + first, self.count if count is None else count)

    def _numbers(self, file: Descriptor, first: int, count: int) -> array[int]:
        found = array("I")
        raw = os.pread(file.number, count * MARK.size, first * MARK.size)
        found.frombytes(raw[: len(raw) // MARK.size * MARK.size])
        found.extend([0] * (count - len(found)))  # a file cut by hand has none there
        return found

    def mark_of(self, block: int) -> int:
        return self.read_marks(block, 1)[0]

    def is_there(self, block: int) -> bool:
        return self.mark_of(block) % 2 == 1

    def lock(self, block: int, count: int = 1) -> bool:
        return try_lock(self.marks.number, block * MARK.size, count * MARK.size)

    def locked(self, first: int, count: int) -> list[int]:
        """Those of these neighbours that nobody else had locked, and that are ours now."""
        blocks = range(first, first + count)
        return list(blocks) if self.lock(first, count) else [one for one in blocks if self.lock(one)]

    def unlock(self, block: int, count: int = 1) -> None:
        unlock(self.marks.number, block * MARK.size, count * MARK.size)

    def lock_unneeded(self, block: int) -> bool:
        """A lock with which this block may be removed: nobody is making it, nor keeps it as the first in line."""
        if not self.lock(block):
            return False
        if try_lock(self.marks.number, KEPT + block, 1):
            return True
        self.unlock(block)
        return False

    def unlock_unneeded(self, block: int) -> None:
        unlock(self.marks.number, KEPT + block, 1)
        self.unlock(block)

    def length_of(self, block: int) -> int:
        return min(BLOCK, self.size - block * BLOCK)

    def mark(self, first: int, checksums: Sequence[int], marks: Sequence[int]) -> None:
        """Mark these neighbouring blocks, whose marks are ``marks``, as written. Only the holder of their locks may do
        so."""
        self._hint(CHECKSUM, first, checksums)
        self._put(self.marks, first, [mark if mark % 2 else (mark + 1) & 0xFFFFFFFF for mark in marks])

    def unmark(self, block: int) -> None:
        """Mark the block as missing, before its bytes go. Only the holder of its lock may do so."""
        mark = self.mark_of(block)
        if mark % 2 == 1:
            self._put(self.marks, block, [(mark + 1) & 0xFFFFFFFF])
        self._hint(CHECKSUM, block, [0])

    def needed(self, first: int, count: int, now: int) -> None:
        """Somebody needs these neighbouring blocks: they are not removed for a while."""
        self._hint(NEEDED, first, [now & 0xFFFFFFFF] * count)
        self._hint(NEXT_USE, first, [0] * count)  # the next use that was noted for them is this one

    def next_use(self, first: int, count: int, when: int) -> None:
        """Note when they are used next: the larger ``when``, the later; 0: unknown."""
        self._hint(NEXT_USE, first, [min(when, 0xFFFFFFFF)] * count)

    def _hint(self, kind: int, first: int, values: Sequence[int]) -> None:
        self._put(self.hints, kind * self.count + first, values)

    def _put(self, file: Descriptor, first: int, values: Sequence[int]) -> None:
        os.pwrite(file.number, array("I", values).tobytes(), first * MARK.size)

    def still_whole(self, block: int) -> bool:
        """Whether a block's bytes survived a crash, by their checksum; if so, it is marked."""
        import zlib  # here: the reading process needs none of it

        (checksum,) = self.hints_of(CHECKSUM, block, 1)
        if checksum == 0:
            return False
        data = os.pread(self.data.number, self.length_of(block), block * BLOCK)
        if len(data) != self.length_of(block) or (zlib.crc32(data) or 1) != checksum:
            return False
        self.mark(block, [checksum], self.read_marks(block, 1))
        return True

    def allocate(self, offset: int, length: int) -> None:
        """Have the filesystem allot bytes that are about to be written, all by one call: else it looks for each 4 KiB
        of them. Never makes the file longer; where it is refused, writing does without."""
        if self._allots is None:
            self._allots = False
            with contextlib.suppress(OSError):  # somebody may have removed it
                self._allots = not file_kind(self.place).network  # there it would be one more request to the server
        if self._allots:
            fallocate(self.data.number, KEEP_SIZE, offset, length)

    def write(self, offset: int, data: bytes | memoryview) -> None:
        view = memoryview(data)
        while view:
            done = os.pwrite(self.data.number, view, offset)
            view, offset = view[done:], offset + done

    def read(self, offset: int, length: int) -> bytes:
        """Bytes of blocks that are there."""
        parts = []
        while length > 0:
            part = os.pread(self.data.number, length, offset)
            if not part:
                raise ReadError(
                    f"{self.place}/data: expected {length} bytes at byte {offset}, got none. Somebody truncated "
                    "it: open the data again, and its blocks are made again.",
                    path=f"{self.place}/data",
                    offset=offset,
                )
            parts.append(part)
            offset, length = offset + len(part), length - len(part)
        return b"".join(parts)

    def settle(self) -> None:
        """Marks from another boot of this machine: none is believed before its block has been checked."""
        with owned(f"{self.place}/boot", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600) as file:
            fcntl.flock(file.number, fcntl.LOCK_EX)
            now = boot_id().encode()
            if now and os.pread(file.number, 64, 0) == now:
                return
            marks = self.read_marks()
            for block, mark in enumerate(marks):
                if mark % 2 == 1:
                    marks[block] = (mark + 1) & 0xFFFFFFFF
            os.pwrite(self.marks.number, marks.tobytes(), 0)
            os.ftruncate(file.number, 0)
            os.pwrite(file.number, now, 0)


def make_files(place: str, size: int, harmed: bool = False) -> None:
    """The files of a block file with no blocks yet; those that are there already stay, unless they were ``harmed``."""
    lengths = {"data": size, "marks": blocks_of(size) * MARK.size, "hints": blocks_of(size) * HINTS * MARK.size}
    with owned(f"{place}/making", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600) as turn:
        fcntl.flock(turn.number, fcntl.LOCK_EX)
        opened = {name: owned(f"{place}/{name}", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600) for name in FILES}
        if not harmed and all(os.fstat(file.number).st_size == lengths[name] for name, file in opened.items()):
            return
        harmed = harmed or any(os.fstat(file.number).st_size for file in opened.values())
        ledger = open_ledger(str(Path(place).parent))
        os.ftruncate(opened["marks"].number, 0)  # these first: none may speak of bytes that are gone
        if harmed:  # by hand: whoever looked at marks before must look again
            fcntl.flock(ledger.number, fcntl.LOCK_EX)
            note_taken(ledger)
            fcntl.flock(ledger.number, fcntl.LOCK_UN)
        for name in ("hints", "data"):
            os.ftruncate(opened[name].number, 0)
        for name in ("data", "hints", "marks"):
            os.ftruncate(opened[name].number, lengths[name])
        if harmed:  # marks that a reader remembers must not come back for other bytes
            fresh = int.from_bytes(os.urandom(3), "little") * 2
            os.pwrite(opened["marks"].number, (array("I", [fresh]) * blocks_of(size)).tobytes(), 0)
