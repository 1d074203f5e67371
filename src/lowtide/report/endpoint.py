"""A small HTTP server with one page, ``/metrics``.

A scrape only writes down what the sampler has already found, so it costs a millisecond and can disturb nobody. It
listens on 127.0.0.1 unless told otherwise. A client that connects and says nothing is dropped after ``_PATIENCE``
seconds, and only ``_MOST_SCRAPERS`` are served at once. No TLS and no password: put it behind something that has them.
"""

from __future__ import annotations

import http.server
import socket
import threading
from collections.abc import Callable

from lowtide.report.prometheus import CONTENT_TYPE

_PATIENCE = 5.0  # seconds
_MOST_SCRAPERS = 8  # scrapers at once


def parse_address(text: str) -> tuple[str, int]:
    """``HOST:PORT``, ``:PORT`` or ``PORT``; the host is 127.0.0.1 where none is given. ``[::1]:9000`` is IPv6."""
    host, _, port = text.rpartition(":")
    if not port.isdigit() or not 0 <= int(port) <= 65535:
        raise ValueError(f"--listen {text}: expected HOST:PORT or :PORT, got {text!r}. Write --listen :9177.")
    return host.strip("[]") or "127.0.0.1", int(port)


class Endpoint:
    """Serves ``text()`` at /metrics from entering the block to leaving it. OSError when the port is taken."""

    def __init__(self, address: tuple[str, int], text: Callable[[], str]) -> None:
        self._server = _Server(address, text)

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        host = str(self._server.server_address[0])
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}/metrics"

    def __enter__(self) -> Endpoint:
        threading.Thread(target=self._server.serve_forever, name="lowtide metrics", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False  # a scraper that hangs must not hold up the end
    allow_reuse_address = True

    def __init__(self, address: tuple[str, int], text: Callable[[], str]) -> None:
        self.text = text
        self._room = threading.BoundedSemaphore(_MOST_SCRAPERS)
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        try:
            super().__init__(address, _Handler)
        except OSError as problem:
            raise OSError(
                f"--listen {address[0]}:{address[1]}: expected a free port, got: {problem.strerror or problem}. "
                "Name another one."
            ) from problem

    def process_request(self, request: object, client_address: object) -> None:
        if not self._room.acquire(blocking=False):
            self.shutdown_request(request)  # type: ignore[arg-type]  # what get_request gave
            return
        super().process_request(request, client_address)  # type: ignore[arg-type]

    def process_request_thread(self, request: object, client_address: object) -> None:
        try:
            super().process_request_thread(request, client_address)  # type: ignore[arg-type]
        finally:
            self._room.release()

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away is no error of ours."""


class _Handler(http.server.BaseHTTPRequestHandler):
    timeout = _PATIENCE
    wbufsize = -1  # head and body leave in one piece
    server: _Server

    def do_GET(self) -> None:
        if self.path.partition("?")[0] not in ("/metrics", "/"):
            self.send_error(404, "there is only /metrics")
            return
        body = self.server.text().encode()
        self.send_response(200)
        self.send_header("Content-Type", CONTENT_TYPE)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Scrapes are not logged."""
