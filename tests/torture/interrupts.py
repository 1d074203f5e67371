"""Exceptions in the middle of ``next()``, while batches are held and checksummed.

Three ways to interrupt. *points*: a trace function raises at one of the bytecodes where the interpreter really looks
for signals (after a call of something written in C, at a function's first line, at the end of a loop's body); there
nothing may be lost, repeated, overwritten, stuck or kept from the budget. *timer*: a real signal at a random moment,
with the same demands. *twice*: a second exception comes while the first is being handled; no program can avoid losing
a batch then, but nothing may be overwritten, wrong or stuck even so.

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
from dataclasses import replace
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from tests.torture.data import Case, fingerprint
from tests.torture.tally import Tally

import lowtide

MOST_HELD = 12
STEPS = 60  # batches asked for of each pass
KNOWN = STEPS + 40  # batches known of it: one that should have come sooner is told from a wrong one
# After these the interpreter looks whether a signal has come (ceval's check of its "eval breaker").
_CHECKED = {
    dis.opmap[name] for name in ("CALL", "CALL_FUNCTION_EX", "CALL_KW", "RESUME", "JUMP_BACKWARD") if name in dis.opmap
}


class Interrupt(BaseException):
    """Like KeyboardInterrupt: nobody's business to catch."""


class Tracer:
    """Counts the points of a call and raises at the chosen ones."""

    def __init__(self) -> None:
        self._codes: dict[CodeType, tuple[bytes, list[int]]] = {}
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
        if frame.f_code not in self._codes:
            self._codes[frame.f_code] = (frame.f_code.co_code, handlers(frame.f_code))
        code, handled_by = self._codes[frame.f_code]
        before, now = self._before.get(frame, -1), frame.f_lasti
        self._before[frame] = now
        # The interpreter raises at the instruction before this one. Here that is the same thing only when the same
        # handler would catch it: not right behind the last call of a ``with`` block, say.
        if before >= 0 and code[before] in _CHECKED and handled_by[before] == handled_by[now]:
            self.points += 1
            if self.points in self._at:
                self.fired += 1
                if self.fired < len(self._at):
                    sys.settrace(self._enter)  # an exception in a trace function ends the tracing
                raise Interrupt
        return self._look


def handlers(code: CodeType) -> list[int]:
    """For each byte of a function's code, where an exception raised there goes; -1: out of the function."""
    found = [-1] * len(code.co_code)
    for entry in dis._parse_exception_table(code):  # type: ignore[attr-defined]  # no public name for it
        found[entry.start : entry.end] = [entry.target] * (entry.end - entry.start)
    return found


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


class Calm:
    """No interrupt: what comes right after one is where a late writer would show."""

    fired = 0

    def call(self, work: Callable[[], Any], at: tuple[int, ...] = ()) -> Any:
        return work()


class Pass:
    """One iterator beside the batches it should give, begun again when it is through."""

    def __init__(self, case: Case, paths: list[Path], opened: Any) -> None:
        self.case, self.opened = case, opened
        self.expected = case.calm(paths, KNOWN)
        self.again()

    def again(self) -> None:
        self.batches = self.case.begin(self.opened)
        self.place = 0

    def due(self, found: int) -> str:
        """What is wrong with getting this batch now, if anything."""
        at, self.place = self.place, self.place + 1
        if found == self.expected[at]:
            return ""
        if found not in self.expected:
            return "wrong rows"
        now = self.expected.index(found)
        self.place = now + 1
        return "lost" if now > at else "repeated"


class Storm:
    """Two iterators of one opened thing: one is interrupted, the other gets the buffers that come back from that."""

    def __init__(self, case: Case, paths: list[Path], tally: Tally, *, strict: bool) -> None:
        self.case, self.tally, self.strict = case, tally, strict
        with case.open(paths) as opened:
            self.room = room_of(case, opened)
        self.opened = case.open(paths)
        self.main, self.other = (Pass(one, paths, self.opened) for one in (case, replace(case, seed=case.seed + 1)))
        self.held: list[tuple[Any, int]] = []

    def step(self, one: Pass, interrupter: Tracer | Timer | Calm, at: tuple[int, ...] = ()) -> None:
        """Ask once, under fire or not; then look at everything held."""
        batch = None
        try:
            batch = interrupter.call(one.batches.__next__, at)
        except Interrupt:
            pass
        except StopIteration:
            if one.place < len(one.expected):
                self.missing("lost", f"{self.case}: expected {len(one.expected)} batches, got {one.place}")
            one.again()
        except lowtide.BudgetError as problem:
            self.missing("budget", f"{self.case}: {problem}")
            self.held.clear()
        except Exception as problem:
            self.tally.found("untyped error", f"{self.case}: {type(problem).__name__}: {problem}"[:600])
            one.again()
        self.tally.fired += interrupter.fired
        if batch is not None:
            self.receive(one, batch)
        self.look()

    def rest(self, rng: random.Random) -> None:
        """Now and then some batches without an interrupt."""
        for _ in range(rng.choice((0, 1, 2, 3))):
            self.step(rng.choice((self.main, self.other, self.other)), Calm())

    def receive(self, one: Pass, batch: Any) -> None:
        found = fingerprint(batch)
        if problem := one.due(found):
            words = f"{self.case}: batch {one.place - 1} of the {'interrupted' if one is self.main else 'other'} pass"
            if problem == "wrong rows":
                self.tally.found(problem, words)
            else:
                self.missing(problem, words)
        self.held.append((batch, found))
        if len(self.held) > MOST_HELD:
            self.held.pop(found % len(self.held))
        if one.place >= min(STEPS, len(one.expected)):
            one.again()

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
        time.sleep(0.05)  # writers that come late
        self.look()
        self.held.clear()
        del self.main.batches, self.other.batches
        gc.collect()
        room = room_of(self.case, self.opened)
        if room < self.room:
            words = f"{self.case}: expected room for {self.room} batches once nothing is held, got {room}"
            self.missing("budget", words)
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


def slow_disk(late: float) -> None:
    """One read in twenty comes ``late`` seconds later than the others, as on a disk that others use too."""
    real, rng = os.preadv, random.Random(1)

    def preadv(number: int, views: Any, offset: int, flags: int = 0) -> int:
        if rng.random() < 0.05:
            time.sleep(late)
        return real(number, views, offset, flags)

    os.preadv = preadv


def program(rng: random.Random, directory: Path, tally: Tally, rounds: int) -> None:
    case = Case.chosen(rng)
    how = rng.choice(("points", "points", "timer", "timer", "twice"))
    storm = Storm(case, case.write(directory), tally, strict=how != "twice")
    if rng.random() < 0.7:
        slow_disk(2e-4)
    if how == "timer":
        with Timer(rng.choice((5e-5, 2e-4, 1e-3, 3e-3))) as timer:
            for _ in range(rounds * 3):
                tally.tried += 1
                storm.step(storm.main, timer)
                storm.rest(rng)
    else:
        tracer = Tracer()
        most = 40
        for _ in range(rounds):
            most = max(most * 7 // 8, tracer.points)  # as many points as calls have had lately
            first = rng.randint(1, most + 5)
            at = (first, first + rng.randint(1, 12)) if how == "twice" else (first,)
            tally.tried += 1
            storm.step(storm.main, tracer, at)
            storm.rest(rng)
    storm.finish()
