"""A small HTTP server that fails on purpose: late, busy, cut short, with the wrong range, with another object, gone.

Serves objects from memory with ranges, ETags and If-Match, as an object store does, and counts what was asked for.
"""

from __future__ import annotations

import hashlib
import re
import socket
import threading
import time
from base64 import b64encode
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit


@dataclass
class Faults:
    """What goes wrong from now on."""

    latency: float = 0.0
    together: int = 0  # answers wait for so many requests, half a minute at most
    busy_every: int = 0  # 503 for every n-th GET
    cut_every: int = 0  # half of the body for every n-th GET
    shift_range_every: int = 0  # the bytes before those asked for, and a Content-Range that says so
    status: int = 0  # this for every request
    gone: bool = False  # the connection is closed without an answer
    idle: float = 0.0  # seconds after which a kept connection is closed
    token: str = ""  # ?token= that every request needs
    user: str = ""  # name:password that every request needs
    no_etag: bool = False
    whole: bool = False  # no ranges: 200 and everything


@dataclass
class Seen:
    gets: list[tuple[str, int, int]] = field(
        default_factory=list
    )  # path, first byte, bytes; only of answers that were whole
    heads: int = 0
    alone: int = 0  # answers that waited in vain for other requests
    requests: int = 0


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, *, body: bool) -> None:
        owner = self.server.owner
        faults, seen = owner.faults, owner.seen
        with owner.lock:
            seen.requests += 1
            seen.heads += not body
            owner.number += body
            number = owner.number
        if faults.latency:
            time.sleep(faults.latency)
        until = time.monotonic() + 30
        while number < faults.together and owner.number < faults.together and not seen.alone:
            time.sleep(0.005)
            seen.alone += time.monotonic() > until
        asked = urlsplit(self.path)
        if faults.gone:
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        if faults.token and parse_qs(asked.query).get("token") != [faults.token]:
            self._short(403)
            return
        if faults.user and self.headers.get("Authorization") != f"Basic {b64encode(faults.user.encode()).decode()}":
            self._short(401)
            return
        if faults.status:
            self._short(faults.status)
            return
        if faults.busy_every and body and number % faults.busy_every == 0:
            self._short(503)
            return
        data = owner.objects.get(unquote(asked.path).lstrip("/"))
        if data is None:
            self._short(404)
            return
        etag = owner.etag(data)
        if self.headers.get("If-Match", etag) != etag:
            self._short(412)
            return
        first, last, status = 0, len(data) - 1, 200
        said = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if said and not faults.whole:
            first = int(said[1])
            last = min(int(said[2]) if said[2] else last, last)
            status = 206
            if first > last:
                self._short(416)
                return
        if faults.shift_range_every and number % faults.shift_range_every == 0 and first >= 16:
            first, last = first - 16, last - 16
        part = memoryview(data)[first : last + 1]
        self.send_response(status)
        self.send_header("Content-Length", str(len(part)))
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Last-Modified", "Mon, 16 Nov 2026 10:00:00 GMT")
        if not faults.no_etag:
            self.send_header("ETag", etag)
        if status == 206:
            self.send_header("Content-Range", f"bytes {first}-{last}/{len(data)}")
        self.end_headers()
        if not body:
            return
        if faults.cut_every and number % faults.cut_every == 0:
            self.wfile.write(part[: len(part) // 2])
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        self.wfile.write(part)
        with owner.lock:
            seen.gets.append((unquote(asked.path).lstrip("/"), first, len(part)))

    def _short(self, status: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def setup(self) -> None:
        super().setup()
        self.connection.settimeout(self.server.owner.faults.idle or None)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    owner: FaultyServer
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # clients that are killed are what some tests are about


class FaultyServer:
    """``objects``: bytes by their path. A context manager."""

    def __init__(self, objects: dict[str, bytes]) -> None:
        self.objects, self.faults, self.seen = objects, Faults(), Seen()
        self.lock, self.number = threading.Lock(), 0
        self._etags: dict[int, tuple[bytes, str]] = {}
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.owner = self
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def etag(self, data: bytes) -> str:
        """Of these bytes; computed once, since it takes longer than the answer."""
        found = self._etags.get(id(data))
        if found is None or found[0] is not data:
            found = self._etags[id(data)] = data, '"' + hashlib.md5(data).hexdigest() + '"'
        return found[1]

    def url(self, name: str) -> str:
        return f"{self.address}/{name}"

    def __enter__(self) -> FaultyServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
