"""How often anything that costs may be read, so that watching stays under 1 % of one core."""

from __future__ import annotations

_BURST, _ALLOWANCE = 0.03, 0.06  # of one core, and seconds of CPU that may be spent at that rate at first


class Pace:
    """Says when a counter may be read again, so that reading it takes at most ``share`` of one core in the long run.

    The first ``_ALLOWANCE`` seconds of CPU are free, so that a program of a few seconds is seen closely too.
    """

    def __init__(self, share: float, every: float) -> None:
        self._share, self._every = share, every
        self._spent = self._next = self._last = 0.0
        self.rest = every

    def due(self, now: float) -> bool:
        return now >= self._next

    def paid(self, now: float, cost: float, *, most: float | None = None) -> None:
        """``most``: the longest rest, whatever it costs."""
        self._spent += cost
        share = _BURST if self._spent < _ALLOWANCE else self._share
        self.rest = max(self._every, cost / share)
        if most is not None:
            self.rest = max(self._every, min(self.rest, most))
        self._last, self._next = now, now + self.rest

    def hurry(self) -> None:
        """Something changed: come back in a quarter of the time."""
        self._next = min(self._next, self._last + self.rest / 4)
