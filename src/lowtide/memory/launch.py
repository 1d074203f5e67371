"""A command started as if it ran alone: its output, its signals and its exit code are its own.

Signals sent to us while it lives go to it at once. What the terminal sends to the whole foreground group (Ctrl-C, a
new size) reaches it without our help, and what we were told to ignore (``nohup``) is ignored by both. Whoever watches
it is woken every so often (``turns``) and decides what to show. Handlers can be set in the main thread only, and are
set back when the block ends.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import IO

_FROM_THE_TERMINAL = (signal.SIGINT, signal.SIGQUIT, signal.SIGWINCH)  # to the whole foreground group
_FORWARDED = (
    *_FROM_THE_TERMINAL,
    *(signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT),
)


class StartError(OSError):
    """A command that could not be started; ``code`` is the exit code a shell would give: 127 where there is none of
    that name, 126 where it cannot be run."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class LaunchedCommand:
    """A running child. ``returncode`` is Popen's, None until ``turns`` has come to its end; ``heard`` are the signals
    that we were sent meanwhile."""

    def __init__(self, child: subprocess.Popen[bytes], heard: list[int]) -> None:
        self._child, self.heard = child, heard

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def returncode(self) -> int | None:
        return self._child.returncode

    def turns(self, seconds: float) -> Iterator[None]:
        """Once every ``seconds`` until the command has ended."""
        while self._child.poll() is None:
            yield
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._child.wait(seconds)


@contextlib.contextmanager
def launched(words: Sequence[str], *, stdout: IO[str] | None = None) -> Iterator[LaunchedCommand]:
    """Start a command; signals are passed on to it until the block ends. StartError with the way out."""
    started: list[subprocess.Popen[bytes]] = []
    early: list[int] = []  # signals that came before there was anybody to have them
    all_heard: list[int] = []

    def heard(number: int, _: object) -> None:
        all_heard.append(number)
        if not started:
            early.append(number)
        elif number not in _FROM_THE_TERMINAL or not _at_terminal():
            started[0].send_signal(number)

    # A handler in place of SIG_IGN would be the default action in the command: nohup would not hold.
    minded = [each for each in _FORWARDED if signal.getsignal(each) != signal.SIG_IGN]
    before = {each: signal.signal(each, heard) for each in minded}
    try:
        try:
            child = subprocess.Popen(words, stdout=stdout)
        except OSError as problem:
            raise _cannot_start(words[0], problem) from problem
        started.append(child)
        for number in early:
            heard(number, None)
        yield LaunchedCommand(child, all_heard)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _at_terminal() -> bool:
    return sys.stdin is not None and sys.stdin.isatty() and os.tcgetpgrp(0) == os.getpgrp()


def _cannot_start(word: str, problem: OSError) -> StartError:
    if isinstance(problem, FileNotFoundError) and shutil.which(word) is None:
        found = f"{word}: expected a command that exists, got none of that name. Check it with `which {word}`."
        return StartError(found, 127)
    if isinstance(problem, FileNotFoundError):  # a script whose interpreter is missing
        found = (
            f"{word}: expected a command that can be run, got one whose interpreter is missing. Check its first line."
        )
        return StartError(found, 126)
    found = f"{word}: expected a command that can be run, got: {problem.strerror}. Check its permissions."
    return StartError(found, 126)
