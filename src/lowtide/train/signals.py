"""Ctrl-C and SIGTERM: leave at the next safe place and save; a second one ends at once.

Python runs a handler only between two of its own instructions, and a backward pass on a CPU can be minutes of one. So
a thread reads the signals (``signal.set_wakeup_fd``) and answers at once: it says that the run is stopping, and ends
the process when it is asked twice (among ranks three times: torchrun repeats a terminal's signal to each of them).
Before the first step there is nothing to save, and the first signal ends the run. The same thread, which wakes once a
second, notices when torchrun itself was killed.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType

_STOPPING = (signal.SIGINT, signal.SIGTERM)
_LOOKS_EVERY = 1.0  # seconds between looks at the parent
_TO_UNWIND = 5.0  # seconds the main thread has to leave while starting; it may sit in a call that never returns


class StoppedEarly(KeyboardInterrupt):
    """Asked to stop before the first step; ``number`` is the signal's."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number

    def __str__(self) -> str:
        return f"stopped by {signal.Signals(self.number).name} before the first step; nothing was saved."


class StopRequest:
    """``number`` is the signal that asked to stop, 0 while none has."""

    def __init__(self, say: Callable[[str], None], *, alone: bool) -> None:
        self.number = 0
        self._say = say
        self._alone = alone
        self._stepping = False
        self._ended = threading.Event()
        self._count = 0
        self._give_up = float("inf")
        self._before: dict[int, object] = {}
        self._parent = os.getppid() if "TORCHELASTIC_RUN_ID" in os.environ else None

    def stepping(self) -> None:
        """From here on there is work worth saving. Raises `StoppedEarly` if asked to stop before."""
        self._stepping = True
        if self.number:
            raise StoppedEarly(self.number)

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():  # Python sets handlers nowhere else
            self._reads, self._writes = socket.socketpair()
            self._writes.setblocking(False)
            self._before = {number: signal.signal(number, self._asked) for number in _STOPPING}
            self._old_wakeup = signal.set_wakeup_fd(self._writes.fileno(), warn_on_full_buffer=False)
            self._watcher = threading.Thread(target=self._watch, name="lowtide-signals", daemon=True)
            self._watcher.start()
        return self

    def __exit__(self, kind: object, problem: BaseException | None, trace: object) -> None:
        self._ended.set()
        if not self._before:
            return
        signal.set_wakeup_fd(self._old_wakeup)
        self._writes.close()  # the watcher reads the end
        self._watcher.join()
        self._reads.close()
        if problem is not None and not self._alone:
            return  # torchrun sends SIGTERM as soon as one rank dies: the others must live to say why they end
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]  # what signal.signal itself returned

    def _asked(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002  # the signal module passes both
        self.number = self.number or number
        if not self._stepping and not self._ended.is_set():
            raise StoppedEarly(self.number)

    def _watch(self) -> None:
        while not self._ended.is_set():
            ready, _, _ = select.select([self._reads], [], [], _LOOKS_EVERY)
            for number in self._reads.recv(64) if ready else b"":
                if number in _STOPPING:
                    self._answer(number)
            if time.monotonic() > self._give_up:
                self._end_now(f"lowtide train: {StoppedEarly(self.number)}")
            if self._parent is not None and os.getppid() != self._parent and not self.number:
                self.number = signal.SIGTERM
                self._tell("the process that started this rank is gone: stopping and saving")

    def _answer(self, number: int) -> None:
        self._count += 1
        if self._count >= (2 if self._alone else 3):
            name = signal.Signals(number).name
            self._end_now(
                f"lowtide train: ended at once by {name}; the last checkpoint remains, nothing newer was saved."
            )
        if self._count > 1:
            return
        self.number = self.number or number
        if self._stepping:
            again = "a second signal" if self._alone else "two more signals"
            self._tell(f"{signal.Signals(number).name}: stopping and saving; {again} would end at once without saving")
        else:
            self._give_up = time.monotonic() + _TO_UNWIND

    def _tell(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # nobody reads any more; the run still has to stop
            self._say(text)

    def _end_now(self, text: str) -> None:
        """Without unwinding: the main thread may be in the middle of anything. Locks die with the process."""
        show_cursor = "\x1b[?25h" if sys.stderr.isatty() else ""  # a progress bar hides it
        with contextlib.suppress(OSError):
            os.write(2, f"{show_cursor}{text}\n".encode())
        os._exit(128 + self.number)
