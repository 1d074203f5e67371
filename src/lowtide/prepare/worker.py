"""A worker process of the local engine: sections or text blocks in, encoded blocks out, until the other side is gone.

It is started as a program of its own (``python -m lowtide.prepare.worker``) and has only a socket, so it ends by itself
when the process that started it is killed. One thread receives tasks, so that the two sides can never block each other
while both are sending; another reads a block ahead of the one that is encoded.
"""

from __future__ import annotations

import queue
import signal
import sys
import threading
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

from lowtide.prepare.encoding import BlockEncoder
from lowtide.prepare.inputs.text_blocks import text_blocks
from lowtide.prepare.processes import ahead


def serve(end: Connection) -> None:
    """Work on tasks until there are no more."""
    recipe = end.recv()
    encoder, tasks = BlockEncoder(recipe), queue.Queue[Any]()
    threading.Thread(target=_take_in, args=(end, tasks), daemon=True).start()

    def read() -> Iterator[tuple[int, Any]]:
        while (task := tasks.get()) is not None:
            number, section, block, skip = task
            try:
                # A worker that died may have sent a block that was handed to it.
                blocks = text_blocks(section, recipe.request, skip) if block is None else [block][skip:]
                for one in blocks:
                    yield number, encoder.read(one)
                yield number, None
            except Exception as problem:
                yield number, problem

    for number, content in ahead(read(), 1):
        try:
            end.send((number, encoder.encode(*content) if isinstance(content, tuple) else content))
        except (BrokenPipeError, ConnectionResetError):
            return
        except Exception as problem:
            end.send((number, problem))


def _take_in(end: Connection, tasks: queue.Queue[Any]) -> None:
    try:
        while True:
            tasks.put(end.recv())
    except (EOFError, OSError):
        tasks.put(None)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started it decides what an interrupt means
    try:
        serve(Connection(int(sys.argv[1])))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        sys.exit(0)
