"""Heap that a program freed and its allocator keeps: told apart from live heap.

Inside this process glibc adds up its own records (``mallinfo2``). From outside, with the permission to trace, they are
read from its memory: a glibc arena is a block of list heads, one for each size of free chunk, and an empty list points
to itself, a pattern found nowhere else. Cost: 1 ms, and 1 to 2 per thousand free chunks, which are walked the largest
first until ``_MOST_SECONDS`` of CPU are spent; an account cut there says so (``whole``). Freeing moves no counter of
the kernel's, but it moves the list heads: their ``mark`` (10 microseconds) tells whether an account still holds, and
whether the program freed while we walked. Other allocators are seen only where they mark pages as free (``LazyFree`` in
smaps); Python's own arenas count as live.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass

from lowtide.memory.measure.smaps import HeapLayout

_WORD = 8
_PAIRS = 127  # list heads of an arena, two words each
_BINS = _PAIRS * 2 * _WORD
_TOP, _NEXT, _SYSTEM = -16, _BINS + 16, _BINS + 16 + 24  # of an arena's other fields, from its first list head
_HEAD = 16  # a list head is addressed as if it were a chunk, whose links lie this far in
_MOST_SECONDS, _MOST_ARENAS = 0.4, 1024
_PATIENCE = 512  # chunks between two looks at the clock
_WINDOW = 4096  # bytes read at a time, for the next chunks too; 64 KiB were slower: pages are copied one by one
_LIBRARY_BYTES = 2 * 1024**2  # the writable part of libc is 8 KiB; anything far larger is not it
_FLAGS = 0x7  # the low bits of a chunk's size
_PAIR = struct.Struct("<2Q")


@dataclass(frozen=True)
class HeapAccount:
    """Bytes the allocator has from the kernel, and the part of them that the program has freed; at least that where not
    the ``whole`` of it was read."""

    system: int
    free: int
    whole: bool = True
    arenas: tuple[int, ...] = ()
    mark: int | None = None  # of the list heads before the walk; None where they cannot be read, or moved meanwhile

    def kept(self, resident: int) -> int:
        """The freed part whose pages are still resident; all that is in use is taken to be resident."""
        return max(0, min(self.free, resident - (self.system - self.free)))


class MallocCounts(ctypes.Structure):
    """As malloc.h has it: ``hblkhd`` mapped for single large blocks; of ``arena``, the rest, ``uordblks`` in use and
    ``fordblks`` free."""

    _names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = tuple((name, ctypes.c_size_t) for name in _names.split())


def malloc_counts() -> MallocCounts | None:
    """The records of this process's C library; None without glibc 2.33 or later."""
    function = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if function is None:
        return None
    function.restype = MallocCounts
    found: MallocCounts = function()
    return found


def own_account() -> HeapAccount | None:
    """The account of this process."""
    found = malloc_counts()
    return None if found is None else HeapAccount(int(found.arena), int(found.fordblks))


def account_of(pid: int, heap: HeapLayout) -> HeapAccount | None:
    """The same of another process, read from its memory; None where that is not glibc's. OSError when not allowed."""
    if not heap.library or not heap.arenas:
        return None
    with _opened(pid) as memory:
        first = _main_arena(memory, heap)
        if first is None:
            return None
        system = free = 0
        arenas = tuple(_arenas(memory, first))
        mark = memory.mark(arenas)
        for arena in arenas:
            steps = memory.steps(arena)
            if steps is None:
                return None
            system += _word(steps, _SYSTEM)
            memory.most = system
            free += _free_bytes(memory, arena, steps)
        mark = mark if mark == memory.mark(arenas) else None
        if free > system:  # the program freed while we walked, and a list led in a circle: nothing was learned
            return HeapAccount(system, 0, whole=False, arenas=arenas)
        return HeapAccount(system, free, not memory.tired, arenas, mark)


def heap_mark(pid: int, arenas: tuple[int, ...]) -> int | None:
    """The mark of the list heads now, of arenas that an account named; None where they cannot be read."""
    try:
        with _opened(pid) as memory:
            return memory.mark(arenas)
    except OSError:
        return None


@contextlib.contextmanager
def _opened(pid: int) -> Iterator[_Memory]:
    fd = os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield _Memory(fd)
    finally:
        os.close(fd)


class _Memory:
    """Reads of another process's memory; None for what cannot be read."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._end = time.thread_time() + _MOST_SECONDS
        self.tired = False  # the time allowed is used up
        self.most = 0  # bytes that lists can hold: one that holds more leads in a circle

    def listed(self, head: int, chunk: int) -> int:
        """Bytes of the free chunks on a list, from the first one until it comes back to its head. It ends early where
        the program changed the list while we walked, or where there is no time left."""
        total, count, mask, unpack = 0, 0, -_WINDOW, _PAIR.unpack_from
        begin, window = -1, b""
        while chunk != head and not self.tired:
            if chunk & mask != begin:
                begin = chunk & mask
                window = self._read_some(begin, _WINDOW)
            try:
                size, following = unpack(window, chunk - begin + _WORD)
            except struct.error:  # across two windows, or the mapping begins or ends inside this one
                words = self.words(chunk + _WORD, 2)
                if words is None:
                    break
                size, following = words
            total += size & ~_FLAGS
            chunk = following
            count += 1
            if count % _PATIENCE == 0:
                self.tired = time.thread_time() > self._end
                if total > self.most:
                    break
        return total

    def _read_some(self, address: int, length: int) -> bytes:
        try:
            return os.pread(self._fd, length, address)
        except (OSError, OverflowError):
            return b""

    def read(self, address: int, length: int) -> bytes | None:
        data = self._read_some(address, length)
        return data if len(data) == length else None

    def words(self, address: int, count: int, *, before: int = 0) -> tuple[int, ...] | None:
        data = self.read(address - before, before + count * _WORD)
        return None if data is None else struct.unpack(f"<{len(data) // _WORD}Q", data)

    def steps(self, arena: int) -> tuple[int, ...] | None:
        """The fields of an arena from its top to what it has from the kernel."""
        return self.words(arena, (_SYSTEM + _WORD) // _WORD, before=-_TOP)

    def mark(self, arenas: tuple[int, ...]) -> int | None:
        """A number that differs once a chunk is put on a list, or taken from one."""
        fields = [self.read(arena + _TOP, _SYSTEM + _WORD - _TOP) for arena in arenas]
        return None if None in fields else hash(tuple(fields))


def _word(words: tuple[int, ...], offset: int) -> int:
    """A field of an arena that was read from ``_TOP`` on."""
    return words[(offset - _TOP) // _WORD]


def _main_arena(memory: _Memory, heap: HeapLayout) -> int | None:
    """The address of the first list head of glibc's main arena, which lies in the library's writable data."""
    for begin, end in heap.library:
        if end - begin > _LIBRARY_BYTES:
            continue
        words = memory.words(begin, (end - begin) // _WORD)
        if words is None:
            continue
        for place in range(2, len(words) - (_SYSTEM // _WORD) - 1):
            if _is_arena(words, place, begin, heap):
                return begin + place * _WORD
    return None


def _is_arena(words: tuple[int, ...], place: int, begin: int, heap: HeapLayout) -> bool:
    """Whether the list heads of an arena begin here: most are empty and point to themselves, the others into the heap,
    and the word before them points to the top of the heap."""
    head = begin + place * _WORD - _HEAD
    if words[place] != head and not _inside(words[place], heap):
        return False
    if not _inside(words[place - 2], heap) and words[place - 2] != head:
        return False
    empty = 0
    for pair in range(_PAIRS):
        own = begin + (place + 2 * pair) * _WORD - _HEAD
        forward, back = words[place + 2 * pair], words[place + 2 * pair + 1]
        if forward == back == own:
            empty += 1
        elif not (_inside(forward, heap) and _inside(back, heap)):
            return False
    return empty >= 1


def _inside(address: int, heap: HeapLayout) -> bool:
    return any(begin <= address < end for begin, end in heap.arenas)


def _arenas(memory: _Memory, first: int) -> Iterator[int]:
    """The first list head of every arena: they form a ring."""
    arena = first
    own = None
    for _ in range(_MOST_ARENAS):
        yield arena
        words = memory.words(arena + _NEXT, 1)
        if words is None:
            return
        if own is None:  # how far the list heads lie inside an arena: a ring of one tells, else the usual 112
            own = first - words[0] if 0 < first - words[0] <= 512 else 112
        arena = words[0] + own
        if arena == first:
            return


def _free_bytes(memory: _Memory, arena: int, words: tuple[int, ...]) -> int:
    """The top chunk and every chunk on the lists, the largest sizes first."""
    top = memory.words(_word(words, _TOP) + _WORD, 1)
    total = (top[0] & ~_FLAGS) if top is not None and _word(words, _TOP) != arena - _HEAD else 0
    for pair in (0, *range(_PAIRS - 1, 0, -1)):
        head = arena + 2 * pair * _WORD - _HEAD
        chunk = _word(words, 2 * pair * _WORD)
        total += memory.listed(head, chunk)
    return total
