"""The line for the room of a cache directory, over all processes of the machine.

As long as the disk has room for what is being read, readers ask for their blocks in no order. A reader whose blocks
found no room, or were taken away before it had read them, gets in line. The first in line locks the blocks it needs, so
that no maker removes them, and its own maker may remove all others. A request touches at most half of the disk: so the
first gets all it needs, whoever else reads, and then the next one is first.

These are locks of open file descriptions, on bytes that no file has: they end with their holder, however it ends. The
line takes two of them. Whoever waits to be first holds the other one meanwhile, so that a reader which comes again at
once is behind those that wait; a single lock would go to whoever asks at the right moment.

Costs nothing while there is room. Nothing here waits for the maker, which never looks who is in line, only whether
somebody is first.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Iterable
from types import TracebackType

from lowtide.blocks.block_file import FIRST, IN_LINE, KEPT, open_ledger, open_marks, unlock, wait_for_bytes
from lowtide.blocks.messages import in_runs
from lowtide.machine import Descriptor
from lowtide.storage.forks import renew_in_children


class _Here(threading.local):
    line: weakref.ref[Line] | None = None


_HERE = _Here()


class Line:
    """A reader's place: ``with Line() as line: ...``. A signal handler that reads shares the place of the read it
    interrupted, which could not go on to leave it."""

    __slots__ = ("__weakref__", "_first", "_kept", "_places", "_shares")

    def __init__(self) -> None:
        self._places: dict[str, Descriptor] = {}  # by directory: of the ledger, open for us alone
        self._first: set[str] = set()  # directories
        self._kept: list[Descriptor] = []
        self._shares = False

    def __enter__(self) -> Line:
        before = None if _HERE.line is None else _HERE.line()
        if before is not None:
            self._shares = True
            return before
        _HERE.line = weakref.ref(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if not self._shares:
            self._leave()
            _HERE.line = None

    @property
    def first(self) -> bool:
        return bool(self._first)

    def wait(self, roots: Iterable[str]) -> None:
        """Until we are the first."""
        renew_in_children(self)
        for root in sorted(set(roots)):  # in one order: nobody waits here for somebody who waits for us
            if root in self._first and os.fstat(self._places[root].number).st_nlink == 0:
                self._first.discard(root)  # somebody removed the directory: others are in line in a new one
                self._places.pop(root).close()
            while root not in self._first:
                place = self._places.setdefault(root, open_ledger(root))
                try:
                    wait_for_bytes(place.number, IN_LINE, 1)
                    wait_for_bytes(place.number, FIRST, 1)
                    self._first.add(root)
                    unlock(place.number, IN_LINE, 1)
                except (OSError, ValueError):
                    if not place.closed:  # a signal handler forked, and this is the child
                        raise

    def keep(self, needed: Iterable[tuple[str, list[int]]]) -> None:
        """Nobody removes these blocks, of block files at these places, until we leave, or keep others."""
        before = list(self._kept)
        for place, blocks in needed:
            # Removed by somebody, or closed by a signal handler that read or forked: whoever lacks blocks keeps again.
            with contextlib.suppress(FileNotFoundError, ValueError):
                marks = open_marks(place)
                self._kept.append(marks)  # before it has locks, so that a child that is forked now closes its copy
                for run in in_runs(blocks, 1 << 30):
                    wait_for_bytes(marks.fileno(), KEPT + run[0], len(run), shared=True)
        self._kept = [one for one in self._kept if one not in before]
        _close(before)

    def _leave(self) -> None:
        _close(self._kept)
        _close(self._places.values())
        self._first.clear()
        self._places.clear()

    def renew_after_fork(self) -> None:
        """The place stays the parent's."""
        for held in (*self._kept, *self._places.values()):
            held.close()
        self._kept = []
        self._first.clear()
        self._places.clear()


def _close(held: Iterable[Descriptor]) -> None:
    for one in list(held):
        with contextlib.suppress(OSError, ValueError):  # closed already
            unlock(one.number, IN_LINE, 0)  # and all that follow: a child that is being forked has a copy of them
        one.close()
