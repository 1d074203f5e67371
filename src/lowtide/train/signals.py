"""Ctrl-C and SIGTERM as a request to finish the step, not as an accident in the middle of one.

One idea: the handler only remembers the signal; the loop looks between steps. A second Ctrl-C ends at once
for someone alone at a terminal; among several ranks it does not, because torchrun repeats the terminal's
signal to each of them.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType

_STOPPING = (signal.SIGINT, signal.SIGTERM)


class StopRequest:
    """``number`` is the signal that asked to stop, 0 while none has."""

    def __init__(self, *, alone: bool) -> None:
        self.number = 0
        self._alone = alone
        self._before: dict[int, object] = {}

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():  # Python sets handlers nowhere else
            self._before = {number: signal.signal(number, self._asked) for number in _STOPPING}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        if problem is not None and not self._alone:
            return  # torchrun sends SIGTERM as soon as one rank dies: the others must live to say why they end
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]  # what signal.signal itself returned

    def _asked(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002  # the signal module passes both
        if self.number and number == signal.SIGINT and self._alone:
            raise KeyboardInterrupt
        self.number = number
