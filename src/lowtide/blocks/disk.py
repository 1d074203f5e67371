"""The bound on what all block files of a cache directory take on the disk, over all processes of the machine.

    ROOT/ledger: how often blocks were taken away | blocks there | blocks being made, one number for each maker

A maker reserves room before it writes, under the ledger's lock. If there is none, blocks that nobody needs now are
removed first: of those whose next use is known, the one used last; of the others, the one needed longest ago. A
maker stamps the blocks that its reader waits for, again and again while it waits, so stamps of a killed maker expire.
What the first in line keeps (first_in_line.py) is removed by nobody.
A maker that was killed leaves a number that no lock protects: then everything is counted again, and the bytes it had
written without marking them are punched out. So the limit ``disk`` holds at every moment.

Costs one lock per 8 MiB made: where there is plenty of room, some is reserved for the requests to come. And a look at
all marks whenever room is made, which is for a 32nd of the disk at a time.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
import threading
import time
from collections.abc import Container, Iterable, Iterator

from lowtide.blocks.block_file import (
    BLOCK,
    CHECKSUM,
    FIRST,
    KEEP_SIZE,
    NEEDED,
    NEXT_USE,
    PUNCH_HOLE,
    BlockFile,
    fallocate,
    note_taken,
    open_ledger,
    try_lock,
)
from lowtide.blocks.messages import CrowdedError
from lowtide.units import format_size

HELD = 3 * 64  # 64ths of a second for which a stamp says that somebody needs a block; makers renew theirs every second
LEAST = 4 * BLOCK  # a disk that cannot hold this makes no progress
_NUMBER = struct.Struct("<q")
_THERE, _SLOTS = 8, 4096  # where in the ledger: blocks there, and the makers'
_MOST_MAKERS = 4096
_LOCKED = 256  # blocks that are removed together
_TOGETHER = 8 * 1024 * 1024 // BLOCK  # blocks reserved beside those of a request where eight times as many have room

# Places and blocks that stay. None: for the first in line, for whom all may go but those it has locked itself.
Claimed = Container[tuple[str, int]] | None


def now() -> int:
    """64ths of a second since the boot: no clock that somebody sets. They last for two years."""
    return int(64 * time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))) & 0xFFFFFFFF


class Disk:
    """One maker's view of a cache directory; ``limit`` bytes, or None: half of what is free."""

    def __init__(self, root: str) -> None:
        self.root = root
        self._file = open_ledger(root)
        self._turn = threading.Lock()  # the ledger's own is one for all threads
        self._slot = next(
            slot for slot in range(_MOST_MAKERS) if try_lock(self._file.number, _SLOTS + slot * 8, 8)
        )  # the lock goes with this process
        self._mine = self._settled = self._made = 0  # blocks reserved; of those, settled and made but not noted yet
        self._spare: tuple[int, int | None] = 0, None  # of those, for requests to come, and inside which limit
        with self._locked():
            self._put(_SLOTS + self._slot * 8, 0)
            self._recount()

    @property
    def alive(self) -> bool:
        """Whether the ledger still has its name: somebody may have removed the directory."""
        return os.fstat(self._file.number).st_nlink > 0

    def limit(self, stated: int | None) -> int:
        if stated is not None:
            return stated
        status = os.statvfs(self.root)
        return (status.f_bavail * status.f_frsize + self._get(_THERE) * BLOCK) // 2

    def reserve(self, blocks: int, stated: int | None, claimed: Claimed) -> None:
        """Room for so many blocks, inside the limit; CrowdedError if no more blocks can be removed. Those that are
        ``claimed`` stay."""
        with self._turn:
            spare, inside = self._spare
            if spare >= blocks and inside == stated:
                self._spare = spare - blocks, stated
                return
            self._reserve(blocks, stated, claimed)

    def _reserve(self, blocks: int, stated: int | None, claimed: Claimed) -> None:
        with self._locked():
            self._note(spare=True)
            making, dead = self._making()
            if dead:
                self._recount()
                making, _ = self._making()
            most = self.limit(stated) * 63 // 64 // BLOCK  # the filesystem's own maps of sparse files take some too
            over = self._get(_THERE) + making + blocks - most
            # The first in line keeps at most half of the disk. If others make no more than a quarter at a time, its
            # own requests, an eighth of the disk each, have room at every moment.
            waits = claimed is not None and making + blocks > most // 4 and self._somebody_is_first()
            if over > 0 and not waits:
                self._put(_SLOTS + self._slot * 8, self._mine + blocks)  # killed meanwhile: everything is counted again
                self._take_away(max(over, min(most // 32, over + 4096)), making, claimed or ())
                self._put(_SLOTS + self._slot * 8, self._mine)
                over = self._get(_THERE) + making + blocks - most
            if over > 0 or waits:
                way_out = "Make room there, or state cache_dir= on another disk" if stated is None else "Raise disk="
                problem = CrowdedError(
                    f"{self.root}: expected room for {format_size(blocks * BLOCK)} more inside disk="
                    f"{format_size(most * BLOCK)}, got {format_size(self._get(_THERE) * BLOCK)} of blocks that cannot "
                    f"be removed now and {format_size(making * BLOCK)} being made. {way_out}.",
                    path=self.root,
                    wanted=blocks * BLOCK,
                    free=None,
                    errno=errno.ENOSPC,
                )
                problem.making = making > 0
                raise problem
            if over + _TOGETHER * 8 <= 0:
                self._spare = _TOGETHER, stated
            self._mine += blocks + self._spare[0]
            self._put(_SLOTS + self._slot * 8, self._mine)

    def settle(self, reserved: int, made: int) -> None:
        """Of the room reserved so many blocks are there now; the rest is free again. If all are there and other room is
        reserved, the next reservation notes it: until then they still count as being made."""
        with self._turn:
            self._settled, self._made = self._settled + reserved, self._made + made
            over = self._settled + self._spare[0] == self._mine
            if made < reserved or over:
                with self._locked():
                    self._note(spare=over)

    # Under the ledger's lock

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        fcntl.flock(self._file.number, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._file.number, fcntl.LOCK_UN)

    def _note(self, spare: bool) -> None:
        """What was settled, and that what is ``spare`` is free again."""
        if spare:
            self._mine, self._spare = self._mine - self._spare[0], (0, None)
        if self._made:
            self._put(_THERE, self._get(_THERE) + self._made)
        self._mine -= self._settled
        self._settled = self._made = 0
        self._put(_SLOTS + self._slot * 8, self._mine)

    def _get(self, at: int) -> int:
        raw = os.pread(self._file.number, 8, at)
        return _NUMBER.unpack(raw)[0] if len(raw) == 8 else 0

    def _put(self, at: int, value: int) -> None:
        os.pwrite(self._file.number, _NUMBER.pack(value), at)

    def _making(self) -> tuple[int, bool]:
        """Blocks being made by all makers, and whether one of them died over it."""
        slots = os.pread(self._file.number, _MOST_MAKERS * 8, _SLOTS)
        total, dead = 0, False
        for slot in range(len(slots) // 8):
            (count,) = _NUMBER.unpack_from(slots, slot * 8)
            if count == 0:
                continue
            if slot != self._slot:
                with open_ledger(self.root) as other:  # of its own, so that our own slot's lock is none of ours
                    if try_lock(other.number, _SLOTS + slot * 8, 8):
                        self._put(_SLOTS + slot * 8, 0)
                        dead = True
                        continue
            total += count
        return total, dead

    def _somebody_is_first(self) -> bool:
        with open_ledger(self.root) as other:
            return not try_lock(other.number, FIRST, 1, shared=True)

    def _files(self) -> Iterator[BlockFile]:
        for entry in os.scandir(self.root):
            if entry.is_dir(follow_symlinks=False):
                with contextlib.suppress(OSError):
                    yield BlockFile(entry.path, os.stat(f"{entry.path}/data").st_size)  # noqa: PTH116

    def _recount(self) -> None:
        there = 0
        for file in self._files():
            marks = file.read_marks()
            present = sum(mark & 1 for mark in marks)
            there += present
            if os.fstat(file.data.number).st_blocks * 512 > (present + 1) * BLOCK:
                checksums = file.hints_of(CHECKSUM)
                unmarked = [block for block, mark in enumerate(marks) if mark % 2 == 0 and checksums[block] == 0]
                self._remove(file, unmarked, marked=False)
        self._put(_THERE, there)

    def _take_away(self, wanted: int, making: int, claimed: Container[tuple[str, int]]) -> None:
        """Remove so many of the blocks that count as being there, or as many as may go."""
        since = now()
        found: list[tuple[int, int, int, int]] = []
        files = list(self._files())
        there = 0
        for number, file in enumerate(files):
            marks = file.read_marks()
            needed, later = file.hints_of(NEEDED), file.hints_of(NEXT_USE)
            for block, mark in enumerate(marks):
                if mark % 2 == 0:
                    continue
                there += 1
                if (file.place, block) not in claimed:
                    recent = since - HELD < needed[block] <= since  # a later one is of an earlier boot
                    # First what nobody has spoken of for a while, then what was read and comes again, then the rest.
                    group = 1 if later[block] else 2 if recent else 0
                    found.append((group, -later[block] or needed[block], number, block))
        found.sort()
        before = self._get(_THERE)
        counted = min(max(before, there - making), there)  # of those being made some may be there, counted as such
        wanted -= before - counted
        looked = gone = 0
        while gone < wanted and looked < len(found):  # some may be locked, and others go instead
            going: dict[int, list[int]] = {}
            for *_, number, block in found[looked : looked + wanted - gone]:
                going.setdefault(number, []).append(block)
                looked += 1
            gone += sum(self._remove(files[number], blocks, marked=True) for number, blocks in going.items())
        self._put(_THERE, counted - gone)

    def _remove(self, file: BlockFile, blocks: list[int], *, marked: bool) -> int:
        """Remove those of these blocks that nobody is making, nor keeps as the first in line, and that are still
        ``marked``, or still not; how many.

        Marks, then the count, then bytes: this order lets readers do without a lock. Whoever read a block, and finds
        the count unchanged afterwards, read it before its bytes went. Whoever looks at marks after the count finds
        none of a block that is going.
        """
        removed = 0
        # Bytes of a block that is not there may go whoever waits for it.
        lock, unlock = (file.lock_unneeded, file.unlock_unneeded) if marked else (file.lock, file.unlock)
        for at in range(0, len(blocks), _LOCKED):
            locked = [block for block in blocks[at : at + _LOCKED] if lock(block)]
            going = [block for block in locked if file.is_there(block) == marked]
            if marked and going:
                for block in going:
                    file.unmark(block)
                note_taken(self._file)
            punch(file, going)
            for block in locked:
                unlock(block)
            removed += len(going)
        return removed


def punch(file: BlockFile, blocks: Iterable[int]) -> None:
    """Give the bytes of blocks that are locked and not marked back to the filesystem."""
    for block in blocks:
        # All of the last one too: only whole blocks of the filesystem are given back. Refused: the bytes stay,
        # unmarked, and are written over.
        fallocate(file.data.number, KEEP_SIZE | PUNCH_HOLE, block * BLOCK, BLOCK)
