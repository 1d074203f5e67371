"""A command started as if we were not there: its output, its signals and its exit code are its own.

Signals sent to us while it lives go to it; a Ctrl-C at the terminal reaches it without our help, because the terminal
sends that to the whole foreground group. Whoever watches it is woken every so often (``turns``) and decides what to
show. Handlers can be set in the main thread only, and are set back when the block ends.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import IO

_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class LaunchedCommand:
    """A running child. ``returncode`` is Popen's, None until ``turns`` has come to its end."""

    def __init__(self, child: subprocess.Popen[bytes], received: list[int]) -> None:
        self._child, self._received = child, received

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def returncode(self) -> int | None:
        return self._child.returncode

    def turns(self, seconds: float) -> Iterator[None]:
        """Once every ``seconds`` until the command has ended. Signals that came meanwhile are passed on first."""
        while self._child.poll() is None:
            while self._received:
                self._pass_on(self._received.pop())
            yield
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._child.wait(seconds)

    def _pass_on(self, number: int) -> None:
        at_terminal = sys.stdin is not None and sys.stdin.isatty() and os.tcgetpgrp(0) == os.getpgrp()
        if number == signal.SIGINT and at_terminal:
            return  # the terminal sent it to the whole group, the command included
        self._child.send_signal(number)


@contextlib.contextmanager
def launched(words: Sequence[str], *, stdout: IO[str] | None = None) -> Iterator[LaunchedCommand]:
    """Start a command; signals are ours to pass on until the block ends. OSError with the way out when it cannot be
    started."""
    received: list[int] = []
    before = {each: signal.signal(each, lambda number, _: received.append(number)) for each in _FORWARDED}
    try:
        try:
            child = subprocess.Popen(words, stdout=stdout)
        except OSError as problem:
            raise _cannot_start(words[0], problem) from problem
        yield LaunchedCommand(child, received)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _cannot_start(word: str, problem: OSError) -> OSError:
    if isinstance(problem, FileNotFoundError):
        return OSError(f"{word}: expected a command that exists, got none of that name. Check it with `which {word}`.")
    return OSError(f"{word}: expected a command that can be run, got: {problem.strerror}. Check its permissions.")
