"""A worker process of the local engine: sections or text blocks in, encoded blocks out, until the other side is gone.

It is started as a program of its own (``python -m lowtide.prepare.worker``) and knows nothing but a socket, so it ends
by itself when whoever started it is killed. A thread takes tasks in, so that neither side can wait for the other while
both are sending.
"""

from __future__ import annotations

import queue
import signal
import socket
import sys
import threading
from typing import Any

from lowtide.prepare.encoding import BlockEncoder
from lowtide.prepare.processes import receive, send


def serve(end: socket.socket) -> None:
    """Work on what comes until nothing comes."""
    encoder = BlockEncoder(receive(end))
    tasks: queue.Queue[Any] = queue.Queue()
    threading.Thread(target=_take_in, args=(end, tasks), daemon=True).start()
    while (task := tasks.get()) is not None:
        number, section, block, skip = task
        try:
            if block is None:
                for encoded in encoder.blocks(section, skip):
                    send(end, (number, encoded))
            elif not skip:  # a worker that died may have sent it already
                send(end, (number, encoder.encode(block)))
            send(end, (number, None))
        except (BrokenPipeError, ConnectionResetError):
            return
        except Exception as problem:
            send(end, (number, problem))


def _take_in(end: socket.socket, tasks: queue.Queue[Any]) -> None:
    try:
        while True:
            tasks.put(receive(end))
    except (EOFError, OSError):
        tasks.put(None)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who started it decides what an interrupt means
    with socket.socket(fileno=int(sys.argv[1])) as given:
        try:
            serve(given)
        except (EOFError, BrokenPipeError, ConnectionResetError):
            sys.exit(0)
