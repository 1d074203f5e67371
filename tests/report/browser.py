"""A headless Chromium, driven over its DevTools pipe with the standard library alone.

Descriptors 3 and 4 of the browser carry JSON messages that end in a zero byte, so no port is
opened and no driver package is needed. It keeps every console message, exception and request of the page.
Costs about a second to start. It does not wait for anything the page does later: pages here load from a
file and are whole at once.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--hide-scrollbars", "--disable-dev-shm-usage", "--remote-debugging-pipe"),
)
_PATIENCE = 60.0  # seconds for one answer; a loaded machine starts the browser slowly


def _high_pipe() -> tuple[int, int]:
    """A pipe whose numbers are not 3 or 4, which the browser's own ends will take."""
    ends = os.pipe()
    high = tuple(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends)
    for end in ends:
        os.close(end)
    return high[0], high[1]


def find() -> str | None:
    """The browser on this machine, if there is one."""
    return next((path for name in _NAMES if (path := shutil.which(name))), None)


class Browser:
    """One browser with one page. ``problems`` are console errors, warnings and exceptions; ``requests`` every
    address asked for."""

    def __init__(self, program: str) -> None:
        self.problems: list[str] = []
        self.requests: list[str] = []
        self._number = 0
        self._unread = b""
        self._events: list[str] = []
        self._session: str | None = None
        self._profile = tempfile.mkdtemp(prefix="lowtide-browser-")
        theirs_in, self._ours_out = _high_pipe()
        self._ours_in, theirs_out = _high_pipe()
        # This gives the pipes the numbers the browser expects, then becomes the browser. (sh knows no numbers above 9.)
        swap = f"import os, sys; os.dup2({theirs_in}, 3); os.dup2({theirs_out}, 4); os.execv(sys.argv[1], sys.argv[1:])"
        words = [program, *_FLAGS, f"--user-data-dir={self._profile}", "about:blank"]
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-c", swap, *words],
            pass_fds=(theirs_in, theirs_out),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        try:
            self._attach()
        except BaseException:
            self.close()
            raise

    def _attach(self) -> None:
        target = self._ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._ask(f"{domain}.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._session = None
        try:
            self._ask("Browser.close")
            self._process.wait(10)
        except (OSError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        os.close(self._ours_in)
        os.close(self._ours_out)
        shutil.rmtree(self._profile, ignore_errors=True)

    def look(self, *, width: int = 1200, height: int = 900, dark: bool = False, media: str = "screen") -> None:
        """The size of the window, the colour scheme the reader prefers, and screen or print."""
        self._ask(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500
        )
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self._ask("Emulation.setEmulatedMedia", media=media, features=scheme)

    def open(self, page: Path | str) -> None:
        """Load a page from a file or an address and wait until it has loaded."""
        self.problems.clear()
        self.requests.clear()
        self._events.clear()
        self._ask("Page.navigate", url=page if isinstance(page, str) else page.resolve().as_uri())
        while "Page.loadEventFired" not in self._events:
            self._receive()

    def evaluate(self, script: str) -> Any:
        """The value of an expression in the page."""
        answer = self._ask("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise AssertionError(f"{script}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def hover(self, x: float, y: float) -> None:
        self._ask("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def type(self, text: str) -> None:
        """Into whatever has the focus."""
        self._ask("Input.insertText", text=text)

    def press(self, key: str) -> None:
        for kind in ("keyDown", "keyUp"):
            self._ask("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=_CODES[key])

    def screenshot(self, path: Path, *, whole: bool = True) -> bytes:
        data = self._ask("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"]
        path.write_bytes(base64.b64decode(data))
        return path.read_bytes()

    def _ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._ours_out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise AssertionError(f"{method}: {answer['error']}")
                result: dict[str, Any] = answer["result"]
                return result

    def _receive(self) -> dict[str, Any]:
        """The next message; events are kept on the way."""
        end = time.monotonic() + _PATIENCE
        while b"\0" not in self._unread:
            if not select.select([self._ours_in], [], [], max(0.0, end - time.monotonic()))[0]:
                raise TimeoutError(f"the browser said nothing for {_PATIENCE:.0f} s")
            part = os.read(self._ours_in, 1 << 20)
            if not part:
                raise OSError("the browser has ended")
            self._unread += part
        line, _, self._unread = self._unread.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        self._note(message)
        return message

    def _note(self, message: dict[str, Any]) -> None:
        method, details = message.get("method", ""), message.get("params", {})
        self._events.append(method)
        if method == "Runtime.exceptionThrown":
            self.problems.append(str(details["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled":
            self.problems.append(f"{details['type']}: {details['args']}")
        elif method == "Log.entryAdded":
            self.problems.append(str(details["entry"]))
        elif method == "Network.requestWillBeSent":
            self.requests.append(details["request"]["url"])


_CODES = {
    "Tab": 9,
    "Escape": 27,
    "PageUp": 33,
    "PageDown": 34,
    "End": 35,
    "Home": 36,
    "ArrowLeft": 37,
    "ArrowRight": 39,
}
