"""The reader's end of its maker: asks, and waits for answers.

One maker per process, started by the first question and ended with the last of its objects or the process, whichever
comes first. There is no thread: whoever waits reads the socket, and passes on the answers that others wait for. A
maker that dies is replaced and asked again, up to three times; a forked child starts a maker of its own.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from lowtide.blocks.messages import KINDS, PACKET, VARIABLES, CrowdedError
from lowtide.errors import FormatError, ReadError, WriteError
from lowtide.storage.forks import Turn, renew_in_children

if TYPE_CHECKING:
    import socket
    import subprocess

_TRIES = 3
# Variables of a maker. Few arenas: what many threads free would stay in each of them. Bodies of a MiB use pages again
# that are neither given back nor zeroed anew. And no threads of NumPy's for products of matrices, which spin when they
# start.
_MAKERS = {
    "MALLOC_ARENA_MAX": "2",
    "MALLOC_MMAP_THRESHOLD_": "4194304",
    "MALLOC_TRIM_THRESHOLD_": "8388608",
    "OPENBLAS_NUM_THREADS": "1",
}
_WAIT = 0.5  # seconds between looks at the clock while nothing comes

Waiting = Callable[[float], None]  # called with the seconds waited so far


class Ticket:
    """A question under way; ``result`` once it was answered. ``error``: what went wrong, to be raised."""

    __slots__ = ("__weakref__", "done", "error", "message", "parts", "result", "tries")

    def __init__(self, message: dict[str, Any]) -> None:
        self.message = message
        self.done = False
        self.result: Any = None
        self.error: Exception | None = None
        self.parts: list[bytes] = []
        self.tries = 1


class Asking:
    """The maker of this process."""

    def __init__(self) -> None:
        self._turn = Turn()
        self._end: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._tickets: dict[int, Ticket] = {}
        self._number = 0
        renew_in_children(self)

    @property
    def pid(self) -> int | None:
        """Of the maker, while there is one."""
        return None if self._process is None else self._process.pid

    def call(self, function: str, arguments: dict[str, Any], waiting: Waiting | None = None) -> Any:
        """The result of a function, run by the maker. ``function``: ``package.module:name``."""
        where = arguments.get("path", "blocks")
        message = {"do": "call", "function": function, "arguments": arguments, "where": where}
        message["environment"] = environment()
        return self.wait(self.ask(message), waiting)

    def ask(self, message: dict[str, Any]) -> Ticket:
        """Put a question; what it holds must fit a packet."""
        with self._turn.lock:
            self._number += 1
            ticket = Ticket({**message, "id": self._number})
            self._tickets[self._number] = ticket
            self._send(ticket)
        return ticket

    def done(self, tickets: list[Ticket]) -> None:
        """The blocks that these questions claimed have been read, and may be removed."""
        with self._turn.lock:
            if self._end is not None and tickets:
                with contextlib.suppress(OSError):  # one that is gone claims nothing
                    ids = [ticket.message["id"] for ticket in tickets]
                    self._end.send(json.dumps({"do": "done", "id": 0, "ids": ids}).encode())

    def wait(self, ticket: Ticket, waiting: Waiting | None = None) -> Any:
        """The answer; its error is raised here."""
        began = monotonic()
        while not ticket.done:
            with self._turn.lock:
                if not ticket.done and ticket.message["id"] not in self._tickets:
                    raise InterruptedError("asked by the parent of this process")  # the caller asks again
                if not ticket.done:
                    self._receive(_WAIT)
            if waiting is not None and not ticket.done:
                waiting(monotonic() - began)
        if ticket.error is not None:
            raise ticket.error
        return ticket.result

    def answered(self) -> None:
        """Take the answers that are there already."""
        with self._turn.lock:
            while self._tickets and self._end is not None and self._receive(0):
                pass

    # The socket, by whoever has the turn

    def _send(self, ticket: Ticket) -> None:
        packet = json.dumps(ticket.message).encode()
        while True:
            end = self._end or self._started()
            try:
                end.settimeout(None)
                end.send(packet)
            except OSError as problem:
                if problem.errno == errno.EMSGSIZE:
                    raise
                self._lost(ticket)
            else:
                return

    def _receive(self, seconds: float) -> bool:
        """One packet; False where none came in time."""
        end = self._end
        if end is None:
            self._again()
            return True
        end.settimeout(seconds or 0.000001)
        try:
            packet = end.recv(2 * PACKET)
        except (TimeoutError, BlockingIOError):
            return False
        except InterruptedError:
            return True
        except OSError:
            packet = b""
        except BaseException:  # an interrupt may have taken a packet with it: nobody knows whose
            self.close()
            raise
        if not packet:
            self._lost(None)
            self._again()
            return True
        number, last, part = packet.split(b" ", 2)
        ticket = self._tickets.get(int(number))
        if ticket is not None:
            ticket.parts.append(part)
            if last == b"1":
                self._tickets.pop(int(number), None)
                _answer(ticket)
        return True

    def _started(self) -> socket.socket:
        import atexit  # here, all three: whoever opens only files needs none of them
        import socket
        import subprocess

        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        home = str(Path(__file__).resolve().parents[2])
        paths = os.pathsep.join(path for path in (home, os.environ.get("PYTHONPATH", "")) if path)
        with theirs:
            command = [sys.executable, "-m", "lowtide.blocks.maker", str(theirs.fileno())]
            self._process = subprocess.Popen(
                command,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": paths, **_MAKERS},
            )
        self._end = ours
        atexit.register(self.close)
        return ours

    def _lost(self, asked: Ticket | None) -> None:
        """The maker is gone: unanswered questions go to another one, or fail."""
        import signal

        ended = self.close()
        how = signal.Signals(-ended).name if ended < 0 else f"status {ended}"
        for number, ticket in list(self._tickets.items()):
            ticket.tries += 1
            ticket.parts.clear()
            if ticket.tries > _TRIES:
                self._tickets.pop(number, None)
                where = str(ticket.message.get("where", "blocks"))
                ticket.error = ReadError(
                    f"{where}: expected its maker to make blocks, got it ended by {how} {_TRIES} times. "
                    "The data may be damaged, or there is too little memory: check both.",
                    path=where,
                    offset=0,
                )
                ticket.done = True
        if asked is not None and asked.done:
            assert asked.error is not None
            raise asked.error

    def _again(self) -> None:
        for ticket in list(self._tickets.values()):
            self._send(ticket)

    def close(self) -> int:
        """End the maker; how it ended."""
        end, self._end = self._end, None
        process, self._process = self._process, None
        if end is not None:
            end.close()
        if process is None:
            return 0
        import atexit
        import subprocess

        atexit.unregister(self.close)
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(5)
        process.kill()  # it hangs in foreign code
        return process.wait()

    def renew_after_fork(self) -> None:
        """The parent's maker is the parent's: only our copy of its socket is closed."""
        if self._end is not None:
            self._end.close()
        if self._process is not None:
            self._process.returncode = 0  # not ours to wait for
        self._end, self._process, self._tickets = None, None, {}


def _answer(ticket: Ticket) -> None:
    said = json.loads(b"".join(ticket.parts))
    ticket.parts.clear()
    if "error" in said:
        ticket.error = _error(said["error"])
    ticket.result = said.get("result")
    ticket.done = True


def _error(said: dict[str, Any]) -> Exception:
    kind, message = said["kind"], said["message"]
    if kind in ("WriteError", "CrowdedError"):
        wanted, free = said.get("wanted"), said.get("free")
        kept = CrowdedError if kind == "CrowdedError" else WriteError
        return kept(message, path=said.get("path", ""), wanted=wanted, free=free, errno=said.get("errno"))
    if kind == "FormatError":
        return FormatError(message)
    if kind in KINDS and kind != "ReadError":
        found: Exception = {"FileNotFoundError": FileNotFoundError, "PermissionError": PermissionError}.get(
            kind, ValueError if kind == "ValueError" else TypeError
        )(message)
        return found
    return ReadError(message, path=said.get("path", ""), offset=said.get("offset", 0), errno=said.get("errno"))


def environment() -> dict[str, str]:
    """The variables that clients of object stores look at, as they are now."""
    return {name: value for name, value in os.environ.items() if name.startswith(VARIABLES)}


MAKER = Asking()
