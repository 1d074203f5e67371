"""What each allocator keeps of freed heap, and whether what was seen of it still holds.

Freeing moves no counter of the kernel's, but it moves the heads of the allocator's free lists, whose mark is cheap to
read. A heap is walked again when its mark or its size has moved: as often as its own cost allows while it moves, and
once more when it has come to rest. A walk while the program freed is no evidence of anything, and says so (``stale``).
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace

from lowtide.memory.measure.allocator import HeapAccount, account_of, heap_mark, own_account
from lowtide.memory.measure.pace import Pace
from lowtide.memory.measure.smaps import Detail
from lowtide.memory.measure.tree import WatchedProcess
from lowtide.memory.samples import StaleLook
from lowtide.units import MIB

_SHARE, _MARKS_SHARE = 0.0005, 0.002  # of one core
_WORKING_SHARE = 0.03  # of one core, in trees of up to ``_FEW`` processes
# Of one core until so many seconds of CPU are spent: the free lists of a short program must be seen after it has freed.
_EARLY_SHARE, _EARLY = 0.1, 1.5
_EVERY, _FRESH = 0.5, 1.5  # seconds between two walks: the least, and the most where they are cheap and the tree small
_FEW = 8
_WORTH_ASKING = 16 * MIB  # of resident heap: below it nobody asks what the allocator keeps
_MOVED = MIB
_RECENT = 1.0  # seconds for which walks that agree speak of a heap that is never at rest


@dataclass(frozen=True)
class Reading:
    """A close look at one process and the plain counters at that moment, to scale later ones by."""

    detail: Detail
    rss_anon: int
    rss_file: int
    rss_shmem: int
    minor_faults: int


@dataclass(frozen=True)
class _HeapLook:
    kept: int
    said_by: str
    rss_anon: int
    anon: int  # its share of that
    arenas: tuple[int, ...]  # none where the account needs no walk, or nobody can tell when it moves
    mark: int | None  # None: the lists moved while they were walked, or there is no telling
    held_at: float  # when this was last known to hold
    off: int  # bytes by which it may be off: by which it differs from the walk before, until it is known to hold

    def is_of(self, member: WatchedProcess, reading: Reading) -> bool:
        """Whether the process is as large now, and shares as much, as when this was seen."""
        return abs(member.counts["RssAnon"] - self.rss_anon) + abs(reading.detail.anon - self.anon) < _MOVED


class HeapLooks:
    """``refresh`` walks the heaps where that tells something new; the rest gives what was found last."""

    def __init__(self, missing: dict[str, str]) -> None:
        self._missing = missing
        self._looks: dict[int, _HeapLook] = {}
        self._marks: dict[int, int | None] = {}
        self._pace, self._marks_pace = Pace(_SHARE, _EVERY), Pace(_MARKS_SHARE, 0.0)
        self._looked_at = -_EVERY
        self.paced = 0.0  # seconds of CPU spent here so far
        self._spent = 0.0  # of these for walks

    def refresh(self, now: float, members: list[tuple[WatchedProcess, Reading | None]], *, last: bool) -> None:
        asked = [
            (member, reading)
            for member, reading in members
            if reading is not None and member.counts["RssAnon"] >= _WORTH_ASKING
        ]
        # Others have ended, or hold too little by now.
        self._looks = {member.pid: self._looks[member.pid] for member, _ in asked if member.pid in self._looks}
        moving, at_rest = self._compare(now, asked, last=last)
        # What has come to rest is looked at once more, without waiting for its turn while there is CPU left for that.
        turn = at_rest and self._spent < _EARLY and now - self._looked_at >= _EVERY
        if last or (moving and (turn or self._pace.due(now))):
            self._look(now, asked, few=len(members) <= _FEW)

    def kept(self, pid: int) -> tuple[int, str]:
        """Bytes that its allocator keeps, and who said so."""
        look = self._looks.get(pid)
        return (look.kept, look.said_by) if look is not None else (0, "")

    def stale(self, now: float, members: list[WatchedProcess]) -> StaleLook | None:
        """How far what is known of the heaps may be off by now."""
        age, off = 0.0, 0
        for member in members:
            look = self._looks.get(member.pid)
            if look is not None and look.arenas:
                age = max(age, now - look.held_at)
                off += look.off if now - look.held_at <= _RECENT else member.counts["RssAnon"]
        return StaleLook("heap", age, off) if off else None

    def _compare(self, now: float, asked: list[tuple[WatchedProcess, Reading]], *, last: bool) -> tuple[bool, bool]:
        """Whether a heap has moved since its walk, and whether all that did have come to rest. A walk whose mark is
        still there holds now."""
        begin = time.thread_time()
        before: dict[int, int | None] = {}
        due = last or self._marks_pace.due(now)
        if due:
            before = self._marks
            self._marks = {pid: heap_mark(pid, look.arenas) for pid, look in self._looks.items() if look.arenas}
            cost = time.thread_time() - begin
            self.paced += cost
            self._marks_pace.paid(now, cost)
        moving, at_rest = False, True
        for member, reading in asked:
            look, mark = self._looks.get(member.pid), self._marks.get(member.pid)
            if look is not None and mark is not None and mark == look.mark and look.is_of(member, reading):
                if due:
                    self._looks[member.pid] = replace(look, held_at=now, off=0)
            else:
                moving = True
                at_rest = at_rest and mark is not None and mark == before.get(member.pid)
        return moving, at_rest

    def _look(self, now: float, asked: list[tuple[WatchedProcess, Reading]], *, few: bool) -> None:
        begin = time.thread_time()
        looks = {}
        for member, reading in asked:
            found = self._walked(now, member, reading)
            if found is not None:
                looks[member.pid] = found
        self._looks, self._looked_at = looks, now
        self._marks |= {pid: look.mark for pid, look in looks.items() if look.mark is not None}
        cost = time.thread_time() - begin
        self.paced += cost
        self._spent += cost
        share = _EARLY_SHARE if self._spent < _EARLY else _WORKING_SHARE
        self._pace.paid(now, cost, most=max(_FRESH, cost / share) if few else None)

    def _walked(self, now: float, member: WatchedProcess, reading: Reading) -> _HeapLook | None:
        heap, resident = reading.detail.heap, member.counts["RssAnon"]
        lazy = min(heap.lazy_free, resident)
        account: HeapAccount | None = None
        try:
            account = own_account() if member.pid == os.getpid() else account_of(member.pid, heap)
        except OSError:
            self._missing.setdefault(
                "retained", "the allocator of another user's process cannot be asked what it keeps"
            )
        if account is None:
            return _HeapLook(lazy, "lazyfree", resident, reading.detail.anon, (), None, now, 0) if lazy else None
        # Pages that a fork shares are in both; the part of this process is as large as its part of the heap.
        whole = max(0, heap.resident + resident - reading.rss_anon)  # what came since the close look too
        kept = scaled(account.kept(whole), scaled(whole, reading.detail.anon, reading.rss_anon), whole) + lazy
        before = self._looks.get(member.pid)
        off = 0
        if account.arenas and account.mark is None:  # it freed meanwhile
            off = abs(kept - (before.kept if before is not None else 0)) if account.whole else resident
        said_by = "allocator" if account.whole else "allocator, in part"
        return _HeapLook(kept, said_by, resident, reading.detail.anon, account.arenas, account.mark, now, off)


def scaled(now: int, share_then: int, whole_then: int) -> int:
    """``now`` reduced as the process's share was reduced at the last close look."""
    return now * min(share_then, whole_then) // whole_then if whole_then else now
