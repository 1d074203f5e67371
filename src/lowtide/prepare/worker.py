"""A worker process of the local engine: sections or text blocks in, encoded blocks out, until the other side is gone.

It is started as a program of its own (``python -m lowtide.prepare.worker``) and has only a socket, so it ends by itself
when the process that started it is killed. A thread receives tasks, so that the two sides can never block each other
while both are sending.
"""

from __future__ import annotations

import queue
import signal
import sys
import threading
from multiprocessing.connection import Connection
from typing import Any

from lowtide.prepare.encoding import BlockEncoder


def serve(end: Connection) -> None:
    """Work on tasks until there are no more."""
    encoder = BlockEncoder(end.recv())
    tasks: queue.Queue[Any] = queue.Queue()
    threading.Thread(target=_take_in, args=(end, tasks), daemon=True).start()
    while (task := tasks.get()) is not None:
        number, section, block, skip = task
        try:
            if block is None:
                for encoded in encoder.blocks(section, skip):
                    end.send((number, encoded))
            elif not skip:  # a worker that died may have sent these blocks already
                end.send((number, encoder.encode(block)))
            end.send((number, None))
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
