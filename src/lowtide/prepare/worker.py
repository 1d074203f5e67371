"""A worker process of the local engine: splits or blocks in, pieces out, until the other side is gone.

One idea: it is started as a program of its own (``python -m lowtide.prepare.worker``) and knows nothing but a socket,
so it imports only what it needs and ends by itself when the run that started it is killed. A thread takes tasks in, so
that neither side can wait for the other while both are sending.
"""

from __future__ import annotations

import queue
import signal
import socket
import sys
import threading
from typing import Any

from lowtide.prepare.pieces import Worker
from lowtide.prepare.transport import receive, send


def serve(end: socket.socket) -> None:
    """Work on what comes until nothing comes."""
    worker = Worker(receive(end))
    tasks: queue.Queue[Any] = queue.Queue()
    threading.Thread(target=_take_in, args=(end, tasks), daemon=True).start()
    while (task := tasks.get()) is not None:
        number, split, raw, skip = task
        try:
            if raw is None:
                for piece in worker.pieces(split, skip):
                    send(end, (number, piece))
            elif not skip:  # a block is one piece; a worker that died may have sent it already
                send(end, (number, worker.encode(raw)))
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
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the run itself decides what an interrupt means
    with socket.socket(fileno=int(sys.argv[1])) as given:
        try:
            serve(given)
        except (EOFError, BrokenPipeError, ConnectionResetError):
            sys.exit(0)
