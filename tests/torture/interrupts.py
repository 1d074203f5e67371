"""Exceptions in the middle of ``next()``, while batches are held and checksummed.

Three ways to interrupt. *points*: a trace function raises at one of the bytecodes where the interpreter really looks
for signals (after a call of something written in C, at a function's first line, at the end of a loop's body); there
nothing may be lost, repeated, overwritten or kept from the budget. *timer*: a real signal at a random moment, with the
same demands. *any*: the trace function raises at any bytecode at all, or a second time while the first exception is
being handled; no program can avoid losing a batch then, but nothing may be overwritten, wrong or stuck even so.

The disk is slowed a little, so that a strategy that reads in threads is caught with reads under way.
"""

from __future__ import annotations

import dis
import gc
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from tests.torture.data import Case, fingerprint
from tests.torture.tally import Tally

import lowtide

MOST_HELD = 12
STEPS = 60  # batches known of each pass
# After these the interpreter looks whether a signal has come (ceval's check of its "eval breaker").
_CHECKED = {
    dis.opmap[name] for name in ("CALL", "CALL_FUNCTION_EX", "CALL_KW", "RESUME", "JUMP_BACKWARD") if name in dis.opmap
}


class Interrupt(BaseException):
    """Like KeyboardInterrupt: nobody's business to catch."""


class Tracer:
    """Counts the points of a call and raises at the chosen ones."""

    def __init__(self, everywhere: bool) -> None:
        self._everywhere = everywhere
        self._codes: dict[CodeType, bytes] = {}
        self._before: dict[FrameType, int] = {}
        self.points = 0
        self.fired = 0
        self._at: tuple[int, ...] = ()

    def call(self, work: Callable[[], Any], at: tuple[int, ...] = ()) -> Any:
        self.points, self.fired, self._at = 0, 0, at
        sys.settrace(self._enter)
        try:
            return work()
        finally:
            sys.settrace(None)
            self._before.clear()

    def _enter(self, frame: FrameType, event: str, argument: object) -> Any:
        if frame.f_code.co_filename == __file__:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        self._before[frame] = -1
        return self._look

    def _look(self, frame: FrameType, event: str, argument: object) -> Any:
        if event == "return" and frame.f_back in self._before:
            self._before[frame.f_back] = -1  # no look for signals when a Python function returns to another
        if event != "opcode":
            return self._look
        code = self._codes.get(frame.f_code)
        if code is None:
            code = self._codes[frame.f_code] = frame.f_code.co_code
        before, self._before[frame] = self._before.get(frame, -1), code[frame.f_lasti]
        if self._everywhere or before in _CHECKED:
            self.points += 1
            if self.points in self._at:
                self.fired += 1
                if self.fired < len(self._at):
                    sys.settrace(self._enter)  # an exception in a trace function ends the tracing
                raise Interrupt
        return self._look


class Timer:
    """Raises from a real signal, only while a call is under way, once for each call."""

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._asking: FrameType | None = None
        self.fired = 0

    def call(self, work: Callable[[], Any], at: tuple[int, ...] = ()) -> Any:
        self.fired = 0
        self._asking = sys._getframe()
        try:
            return work()
        finally:
            self._asking = None

    def __enter__(self) -> Timer:
        signal.signal(signal.SIGALRM, self._ring)
        signal.setitimer(signal.ITIMER_REAL, self._interval, self._interval)
        return self

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)

    def _ring(self, number: int, frame: FrameType | None) -> None:
        # In this very frame the call has not begun or is over: what is lost there is lost by the caller.
        if self._asking is not None and frame is not self._asking:
            self._asking = None
            self.fired = 1
            raise Interrupt


class Storm:
    """One iterator under interrupts, beside the batches it should give."""

    def __init__(self, case: Case, paths: list[Path], tally: Tally, *, strict: bool) -> None:
        self.case, self.tally, self.strict = case, tally, strict
        self.expected = case.calm(paths, STEPS)
        with case.open(paths) as opened:
            self.room = room_of(case, opened)
        self.opened = case.open(paths)
        self.held: list[tuple[Any, int]] = []
        self.again()

    def again(self) -> None:
        self.batches = self.case.begin(self.opened)
        self.place = 0

    def step(self, interrupter: Tracer | Timer, at: tuple[int, ...]) -> None:
        """Ask once, under fire; then look at everything held."""
        batch = None
        try:
            batch = interrupter.call(self.batches.__next__, at)
        except Interrupt:
            pass
        except StopIteration:
            if self.place < min(len(self.expected), STEPS - 1):
                self.missing("lost", f"{self.case}: expected {len(self.expected)} batches, got {self.place}")
            self.again()
        except Exception as problem:
            self.tally.found("untyped error", f"{self.case}: {type(problem).__name__}: {problem}"[:600])
            self.again()
        self.tally.fired += interrupter.fired
        if batch is not None:
            self.receive(batch)
        self.look()

    def receive(self, batch: Any) -> None:
        found = fingerprint(batch)
        if found == self.expected[self.place]:
            self.place += 1
        elif found in self.expected:
            now = self.expected.index(found)
            kind = "lost" if now > self.place else "repeated"
            self.missing(kind, f"{self.case}: expected batch {self.place}, got batch {now}")
            self.place = now + 1
        else:
            self.tally.found("wrong rows", f"{self.case}: batch {self.place} is none of this pass")
            self.place += 1
        self.held.append((batch, found))
        if len(self.held) > MOST_HELD:
            self.held.pop(found % len(self.held))
        if self.place >= len(self.expected):
            self.again()

    def missing(self, kind: str, example: str) -> None:
        if self.strict:
            self.tally.found(kind, example)

    def look(self) -> None:
        """Nothing that is held may have changed."""
        for index, (batch, then) in enumerate(self.held):
            now = fingerprint(batch)
            if now != then:
                self.tally.found("overwritten", f"{self.case}: a held batch changed from {then:08x} to {now:08x}")
                self.held[index] = (batch, now)
        self.tally.tell_now_and_then()

    def finish(self) -> None:
        time.sleep(0.02)  # writers that come late
        self.look()
        self.held.clear()
        del self.batches
        gc.collect()
        room = room_of(self.case, self.opened)
        if room < self.room and self.strict:
            words = f"{self.case}: expected room for {self.room} batches once nothing is held, got {room}"
            self.tally.found("budget", words)
        self.opened.close()


def room_of(case: Case, opened: Any) -> int:
    """How many batches the budget lets one hold."""
    held: list[Any] = []
    batches = case.begin(opened)
    while len(held) < 10_000:
        try:
            held.append(next(batches))
        except StopIteration:
            batches = case.begin(opened)
        except lowtide.BudgetError:
            break
    return len(held)


def slow_disk(rng: random.Random) -> None:
    """Every read takes up to half a millisecond longer, which real disks do too."""
    real = os.preadv

    def preadv(number: int, views: Any, offset: int, flags: int = 0) -> int:
        time.sleep(rng.random() * 5e-4)
        return real(number, views, offset, flags)

    os.preadv = preadv


def program(rng: random.Random, directory: Path, tally: Tally, rounds: int) -> None:
    case = Case.chosen(rng)
    how = rng.choice(("points", "points", "timer", "timer", "any"))
    storm = Storm(case, case.write(directory), tally, strict=how != "any")
    if rng.random() < 0.7:
        slow_disk(rng)
    if how == "timer":
        with Timer(rng.choice((5e-5, 2e-4, 1e-3, 3e-3))) as timer:
            for _ in range(rounds * 3):
                tally.tried += 1
                storm.step(timer, ())
    else:
        tracer = Tracer(everywhere=how == "any")
        most = 40
        for _ in range(rounds):
            most = max(most * 7 // 8, tracer.points)  # as many points as calls have had lately
            times = rng.choice((1, 1, 2)) if how == "any" else 1
            at = sorted({rng.randint(1, most + 5) for _ in range(times)})
            tally.tried += 1
            storm.step(tracer, tuple(at))
    storm.finish()
