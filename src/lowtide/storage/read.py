"""Strategy ``read``: ``preadv`` into buffers we own. The default, because nothing is ever mapped.

One idea: one C-level ``map`` over a call's reads, at the price of a bare loop; everything careful - short reads,
errors, naming the offset - happens only when the sum of bytes is not what it should be.

Telling the kernel of reads before making them is worth 6x when they miss and costs as much as the reads when they hit.
RWF_NOWAIT answers for free: it reads what is cached and refuses what is not. So a store assumes at first that data is
cached, learns of the first miss from a refused read, and announces from then on; now and then it leaves one call
unannounced to learn whether the cache has filled meanwhile.

Costs about 1 microsecond per read when cached. A truncated file is a short read here, never SIGBUS.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections import deque
from collections.abc import Iterable
from itertools import repeat
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lowtide.errors import ReadError
from lowtide.machine import PAGE
from lowtide.storage.buffers import Buffer
from lowtide.storage.descriptors import Descriptor, Files
from lowtide.storage.spans import Ahead, Spans

NOWAIT = getattr(os, "RWF_NOWAIT", 0)
RECHECK_CALLS = 32  # an unannounced cold call costs about twice an announced one: 3 % of one in 32

DONTCACHE = 0x80  # RWF_DONTCACHE, Linux 6.14; not among Python's constants yet
FOLIO = 512 * PAGE  # the largest unit the page cache holds file data in
_UNSUPPORTED = {errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS}


class Temperature:
    """``cold`` is what the last reads said. One per store; races between threads only cost a wrong guess."""

    __slots__ = ("_calls", "cold")

    def __init__(self) -> None:
        self.cold = False
        self._calls = 0

    def announce_next(self) -> bool:
        """Whether to tell the kernel of the next call now."""
        self._calls += 1
        return self.cold and self._calls % RECHECK_CALLS != 0

    def try_cached(self) -> bool:
        """Whether this call should first try the cache alone."""
        return bool(NOWAIT) and (not self.cold or self._calls % RECHECK_CALLS == 0)


class _Reads(NamedTuple):
    """A call's reads, as parallel lists."""

    spans: Spans
    numbers: list[int]
    offsets: list[int]
    targets: list[list[memoryview]]

    def make(self, flags: int) -> Iterable[int]:
        """Every read in turn, lazily, driven from C: the bytes each one gave."""
        return map(os.preadv, self.numbers, self.targets, self.offsets, repeat(flags))


class Read:
    """Reads spans with ``preadv``; ``drop`` leaves none of them in the page cache."""

    name = "read"
    widens = False
    merges = True  # two small neighbours cost two calls apart and one together

    def __init__(self, files: Files, *, drop: bool) -> None:
        self.files = files
        self.drop = drop
        self.temperature = Temperature()
        self.nowait = bool(NOWAIT)
        self.dontcache = drop

    def fill(self, spans: Spans, buffer: Buffer, *, ahead: Ahead = None, scattered: bool) -> None:
        """Read every span into ``buffer``, or raise; tell the kernel of ``ahead`` while reads miss."""
        held = self.files.descriptors(spans.files, scattered=scattered)
        if len(held) == 1:
            numbers = [held[spans.files[0]].number] * len(spans.numbers)
        else:
            numbers = [held[file].number for file in spans.files]
        reads = _Reads(spans, numbers, spans.offsets.tolist(), spans.targets(buffer))
        if not scattered:
            # The kernel reads ahead of sequential reads by itself; announcing them as well gained nothing.
            self._from_disk(reads, DONTCACHE if self.dontcache else 0)
        elif not self._from_cache(reads):
            self._announce_both(spans, held, ahead)
            self._from_disk(reads, 0)
        self.files.counters.read += spans.total
        if self.drop and not self.files.in_memory:
            for number, offset, length in zip(reads.numbers, reads.offsets, spans.length_of_each(), strict=True):
                drop_pages(number, offset, length, sequential=not scattered)

    def fetch(self, spans: Spans) -> NDArray[np.uint8] | None:  # noqa: ARG002
        """No way without a buffer."""
        return None

    def _from_cache(self, reads: _Reads) -> bool:
        """Try the page cache alone; True when it had everything."""
        if self.files.in_memory or not self.nowait or not self.temperature.try_cached():
            return False
        got: list[int] = []
        try:
            got.extend(reads.make(NOWAIT))
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as problem:
            if problem.errno not in _UNSUPPORTED:
                raise self._failed(reads, len(got), problem) from problem
            self.nowait = False
        found = sum(got)
        self.files.counters.cached += found
        self.temperature.cold = found != reads.spans.total
        return not self.temperature.cold

    def _announce_both(self, spans: Spans, held: dict[int, Descriptor], ahead: Ahead) -> None:
        if self.files.in_memory:
            return
        announce(held, spans)
        if ahead is not None and self.temperature.announce_next():
            later = ahead()
            announce(self.files.descriptors(later.files, scattered=True), later)

    def _from_disk(self, reads: _Reads, flags: int) -> None:
        got: list[int] = []
        try:
            got.extend(reads.make(flags))  # on an error `got` keeps what came before it
        except InterruptedError:
            pass
        except OSError as problem:
            if not flags or problem.errno not in _UNSUPPORTED:
                raise self._failed(reads, len(got), problem) from problem
            self.dontcache = False  # this filesystem has no RWF_DONTCACHE: the drop after the read remains
            flags = 0
        if sum(got) != reads.spans.total:
            self._continue(reads, got, flags)

    def _continue(self, reads: _Reads, got: list[int], flags: int) -> None:
        """Finish reads that came back short and make those that were not made."""
        for index, length in enumerate(reads.spans.length_of_each()):
            done = got[index] if index < len(got) else 0
            while done < length:
                offset = reads.offsets[index] + done
                try:
                    more = os.preadv(reads.numbers[index], [reads.targets[index][0][done:]], offset, flags)
                except InterruptedError:
                    continue
                except OSError as problem:
                    if flags and problem.errno in _UNSUPPORTED:  # the first try was interrupted before it could tell
                        self.dontcache, flags = False, 0
                        continue
                    raise read_failed(self._path(reads, index), offset, problem) from problem
                if more == 0:
                    raise came_short(self._path(reads, index), reads.offsets[index], length, done)
                done += more

    def _failed(self, reads: _Reads, index: int, problem: OSError) -> ReadError:
        return read_failed(self._path(reads, index), reads.offsets[index], problem)

    def _path(self, reads: _Reads, index: int) -> str:
        return self.files.extents[reads.spans.file_of_each()[index]].path

    @property
    def rung(self) -> str:
        """How the page cache is left, in words for ``plan()``."""
        if not self.drop:
            return "keep"
        if self.files.in_memory:
            return "none: the file lives in memory (tmpfs), nothing can be dropped"
        if not hasattr(os, "posix_fadvise"):
            return "none: this system has no posix_fadvise"
        rung = "RWF_DONTCACHE + fadvise(DONTNEED)" if self.dontcache else "fadvise(DONTNEED)"
        return f"{rung}; files that live in memory (tmpfs) stay" if self.files.partly_in_memory else rung

    def close(self) -> None:
        """Nothing is kept beside the files."""


def announce(held: dict[int, Descriptor], spans: Spans) -> None:
    """Tell the kernel of reads to come; it starts them all at once."""
    if not hasattr(os, "posix_fadvise"):
        return
    numbers: Iterable[int] = (held[file].number for file in spans.file_of_each())
    calls = map(
        os.posix_fadvise,
        numbers,
        spans.offsets.tolist(),
        spans.length_of_each(),
        repeat(os.POSIX_FADV_WILLNEED),
    )
    with contextlib.suppress(OSError):  # a hint: where the kernel refuses it, the reads themselves will tell
        deque(calls, maxlen=0)


def drop_pages(number: int, offset: int, length: int, *, sequential: bool = False) -> None:
    """Evict a range, rounded out to whole pages: the kernel keeps pages that are only partly named.

    Behind sequential reads it keeps whole folios of up to 2 MiB that are only partly named; a range that starts at a
    folio's bounds also takes the one that the read before ended in.
    """
    if hasattr(os, "posix_fadvise"):
        first = offset // (FOLIO if sequential else PAGE) * (FOLIO if sequential else PAGE)
        last = -(-(offset + length) // PAGE) * PAGE
        with contextlib.suppress(OSError):  # a hint: what was read is right all the same
            os.posix_fadvise(number, first, last - first, os.POSIX_FADV_DONTNEED)


def read_failed(path: str, offset: int, problem: OSError) -> ReadError:
    name = errno.errorcode.get(problem.errno or 0, "an error")
    return ReadError(
        f"{path}: expected to read at byte {offset}, got {name} ({problem.strerror}). "
        "Check the disk and open the file again.",
        path=path,
        offset=offset,
        errno=problem.errno,
    )


def came_short(path: str, offset: int, expected: int, got: int) -> ReadError:
    return ReadError(
        f"{path}: expected {expected} bytes at byte {offset}, got {got} before the end of the file. "
        "It was truncated while open: open it again once it is complete.",
        path=path,
        offset=offset,
    )
