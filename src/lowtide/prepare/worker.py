"""A worker process of the local engine: sections or text blocks in, encoded blocks out, until the other side is gone.

It is started as a program of its own (``python -m lowtide.prepare.worker``) and has only a socket and memory for ids,
so it ends by itself when the process that started it is killed. One thread receives tasks and slots that are free
again, so that the two sides can never block each other while both are sending; another reads two blocks ahead of the
one that is encoded, and one more where a task has several, to know which is its last.
"""

from __future__ import annotations

import mmap
import queue
import signal
import sys
import threading
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowtide.prepare.encoding import BlockEncoder, EncodedBlock
from lowtide.prepare.inputs.text_blocks import text_blocks
from lowtide.prepare.processes import SLOT, SLOTS, ahead


def serve(end: Connection, ids: mmap.mmap) -> None:
    """Work on tasks until there are no more."""
    recipe = end.recv()
    tasks, sender = queue.SimpleQueue[Any](), _Sender(end, ids)
    encoder = BlockEncoder(recipe, sender.room)
    threading.Thread(target=_take_in, args=(end, tasks, sender.free), daemon=True).start()

    def read() -> Iterator[Any]:
        while (task := tasks.get()) is not None:
            _, section, block, skip = task
            content = None
            try:
                # A worker that died may have sent a block that was handed to it.
                blocks = text_blocks(section, recipe.request, skip) if block is None else [block][skip:]
                for one in blocks:
                    if content is not None:
                        yield content, False
                        content = None
                    content = encoder.read(one)
                yield content, True
            except Exception as problem:
                if content is not None:
                    yield content, False
                yield problem, True

    for content, last in ahead(read(), 2):
        try:
            if isinstance(content, tuple):
                sender.send_block(encoder.encode(*content), last)
            else:
                sender.send(content, last)
        except (BrokenPipeError, ConnectionResetError, EOFError):
            return
        except Exception as problem:
            sender.send(problem, True)


class _Sender:
    def __init__(self, end: Connection, ids: mmap.mmap) -> None:
        self._end, self._ids = end, ids
        # The last one given back is the next one used: it is still in the processor's cache.
        self.free: queue.LifoQueue[int | None] = queue.LifoQueue()
        for slot in range(SLOTS):
            self.free.put(slot)
        self._slot: int | None = None

    def send(self, content: Any, last: bool) -> None:
        """``last``: the task ends with this. Nearly every task is one block, so an end of its own would double what
        travels and who wakes up."""
        self._end.send((content, last, -1, "", 0))

    def room(self, dtype: str, count: int) -> NDArray[Any] | None:
        """The next free slot, for ids that are sent with the next block; None if they are too many."""
        if count * np.dtype(dtype).itemsize > SLOT:
            return None
        self._slot = self.free.get()
        if self._slot is None:
            raise EOFError
        return np.frombuffer(self._ids, dtype, count, self._slot * SLOT)

    def send_block(self, block: EncodedBlock, last: bool) -> None:
        slot, self._slot = self._slot, None
        if slot is None:
            self.send(block, last)
        else:
            ids, block.ids = block.ids, block.ids[:0]
            self._end.send((block, last, slot, ids.dtype.str, len(ids)))


def _take_in(end: Connection, tasks: queue.SimpleQueue[Any], free: queue.LifoQueue[int | None]) -> None:
    try:
        while True:
            content = end.recv()
            (free if isinstance(content, int) else tasks).put(content)
    except (EOFError, OSError):
        tasks.put(None)
        free.put(None)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started it decides what an interrupt means
    try:
        serve(Connection(int(sys.argv[1])), mmap.mmap(int(sys.argv[2]), SLOTS * SLOT))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        sys.exit(0)
