"""Objects with large arrays through a socket between two of our own processes.

One idea: pickle leaves the arrays out and they follow as they are, so that nothing is copied on the way into the socket
and once on the way out. For processes this program started, never for data files. Costs one allocation per array.
"""

from __future__ import annotations

import pickle
import socket
import struct
from typing import Any

import numpy as np

_BUFFER = 4 * 1024 * 1024  # asked for; the kernel gives what its limits allow


def pair() -> tuple[socket.socket, socket.socket]:
    """Two connected ends."""
    ends = socket.socketpair()
    for end in ends:
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            end.setsockopt(socket.SOL_SOCKET, option, _BUFFER)
    return ends


def send(end: socket.socket, message: object) -> None:
    buffers: list[pickle.PickleBuffer] = []
    body = pickle.dumps(message, protocol=5, buffer_callback=buffers.append)
    views = [memoryview(body), *(buffer.raw() for buffer in buffers)]
    end.sendall(struct.pack(f"<Q{len(views)}Q", len(views), *(len(view) for view in views)))
    for view in views:
        end.sendall(view)


def receive(end: socket.socket) -> Any:
    """The next message; EOFError where the other side is gone."""
    (count,) = struct.unpack("<Q", _exactly(end, 8))
    sizes = struct.unpack(f"<{count}Q", _exactly(end, 8 * count))
    body, *buffers = [_exactly(end, size) for size in sizes]
    return pickle.loads(body, buffers=buffers)


def _exactly(end: socket.socket, size: int) -> memoryview:
    buffer = np.empty(size, np.uint8).data if size else memoryview(b"")
    done = 0
    while done < size:
        try:
            got = end.recv_into(buffer[done:])
        except ConnectionResetError:
            got = 0
        if got == 0:
            raise EOFError
        done += got
    return buffer
