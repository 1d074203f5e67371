"""Runs programs of campaigns in processes of their own until the time is over, and prints what they found.

A program shows signs of life (its counts, a few times per second). One that is silent for its campaign's
patience hangs, however slow the machine: it is asked for the stacks of its threads, then killed with everything it
started.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path

from tests.torture.campaigns import CAMPAIGNS, Campaign
from tests.torture.tally import DANGERS, Tally

ROOT = Path(__file__).resolve().parents[2]
STACKS = signal.SIGUSR2  # asks a program for the stacks of its threads
TAIL = 3000  # characters of what a dead program said last


@dataclass(frozen=True)
class Ran:
    """One program that has ended, by itself or not."""

    campaign: Campaign
    seed: int
    tally: Tally
    hung: bool
    seconds: float
    said: str


@dataclass
class Row:
    """A campaign's line of the table."""

    programs: int = 0
    tried: int = 0
    fired: int = 0
    wrong: int = 0
    lost: int = 0
    hung: int = 0
    danger: int = 0
    seconds: float = 0.0
    skipped: set[str] = field(default_factory=set)

    @property
    def survived(self) -> int:
        return max(0, self.fired - self.wrong - self.lost - self.hung - self.danger)

    @property
    def failed(self) -> int:
        return self.wrong + self.lost + self.hung

    def fits_into(self, seconds: float) -> bool:
        """Whether one more program, as long as those before it, would end in time."""
        return not self.skipped and seconds > 0 and self.seconds / max(1, self.programs) <= seconds

    def add(self, ran: Ran) -> None:
        tally = ran.tally
        self.programs += 1
        self.seconds += ran.seconds
        self.tried += tally.tried
        self.fired += tally.fired
        self.wrong += tally.wrong
        self.lost += tally.lost
        self.hung += ran.hung + tally.hung
        self.danger += sum(tally.problems[kind] for kind in DANGERS)
        if tally.skipped:
            self.skipped.add(tally.skipped)


def run_program(campaign: Campaign, seed: int, rounds: int | None = None, words: list[str] | None = None) -> Ran:
    """One program in a process group of its own; killed when it falls silent. ``words`` is another command to run."""
    began = time.monotonic()
    directory = Path(tempfile.mkdtemp(prefix="torture-"))
    words = words or [sys.executable, "-m", "tests.torture", "--program", campaign.name, "--seed", str(seed)]
    words = [*words, "--rounds", str(rounds or campaign.rounds), "--directory", str(directory)]
    with (directory / "stderr").open("w+b") as errors:
        child = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=errors, start_new_session=True)
        try:
            output, hung = _listen(child, campaign.patience)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            code = child.wait()
            assert child.stdout is not None
            child.stdout.close()
        errors.seek(0)
        said = errors.read()[-TAIL:].decode(errors="replace")
    campaign.clean(directory)
    shutil.rmtree(directory, ignore_errors=True)
    tally = Tally.from_output(output)
    if code and not hung:
        died = signal.Signals(-code).name if code < 0 else f"exit {code}"
        tally.add("died", f"the program ended with {died}: {said.strip()[-1500:]}")
    return Ran(campaign, seed, tally, hung, time.monotonic() - began, said)


def _listen(child: subprocess.Popen[bytes], patience: float) -> tuple[str, bool]:
    """What the child prints until it ends or has been silent for too long."""
    assert child.stdout is not None
    pieces: list[bytes] = []
    last = time.monotonic()
    while time.monotonic() - last < patience:
        if not select.select([child.stdout], [], [], 0.2)[0]:
            if child.poll() is not None:  # what it started and left hanging keeps the pipe open
                return b"".join(pieces).decode(errors="replace"), False
            continue
        piece = os.read(child.stdout.fileno(), 1 << 16)
        if not piece:
            return b"".join(pieces).decode(errors="replace"), _ends(child, patience)
        pieces.append(piece)
        last = time.monotonic()
    _ask_for_stacks(child)
    return b"".join(pieces).decode(errors="replace"), True


def _ends(child: subprocess.Popen[bytes], patience: float) -> bool:
    """Whether a child that has closed its output fails to end."""
    try:
        child.wait(patience)
    except subprocess.TimeoutExpired:
        _ask_for_stacks(child)
        return True
    return False


def _ask_for_stacks(child: subprocess.Popen[bytes]) -> None:
    """faulthandler answers with every thread's stack, also where the interpreter is stuck."""
    child.send_signal(STACKS)
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(2)  # time to write them: it does not end


def torture(names: list[str], seed: int, minutes: float, programs: int | None, rounds: int | None) -> int:
    """Programs of these campaigns in turn, two at a time, until the time (or their number) is over; how many failed."""
    ends = time.monotonic() + 60 * minutes
    rows = {name: Row() for name in names}
    begun = dict.fromkeys(names, 0)
    running: dict[Future[Ran], str] = {}
    with ThreadPoolExecutor(2 if (os.cpu_count() or 1) > 1 else 1) as pool:
        while True:
            left = float("inf") if programs else ends - time.monotonic()
            waiting = [name for name in names if begun[name] < (programs or 1 << 60) and rows[name].fits_into(left)]
            # The campaign that has had least time comes next, of those that are not under way if there are any.
            waiting.sort(key=lambda name: (name in running.values(), rows[name].seconds, begun[name]))
            if waiting and len(running) < 2:
                name = waiting[0]
                job = pool.submit(run_program, CAMPAIGNS[name], seed + begun[name], rounds)
                begun[name] += 1
                running[job] = name
                continue
            if not running:
                break
            for job in wait(running, return_when=FIRST_COMPLETED).done:
                name = running.pop(job)
                ran = job.result()
                rows[name].add(ran)
                report(ran, rounds)
    print(table(rows))
    return sum(row.failed for row in rows.values())


def report(ran: Ran, rounds: int | None) -> None:
    """Nothing for a program without problems; for one with, what they are and how to run it again."""
    kinds = {kind: count for kind, count in ran.tally.problems.items() if kind not in DANGERS}
    if not kinds and not ran.hung:
        return
    print(f"\n{ran.campaign.name}: {'hung; ' if ran.hung else ''}{', '.join(f'{n} {k}' for k, n in kinds.items())}")
    for kind in kinds:
        for example in ran.tally.examples.get(kind, ()):
            print(f"  {kind}: {example}")
    if ran.hung:
        print("  " + ran.said.strip().replace("\n", "\n  "))
    more = f" --rounds {rounds}" if rounds else ""
    print(
        f"  again: python -m tests.torture --only {ran.campaign.name} --seed {ran.seed} --programs 1{more}", flush=True
    )


def table(rows: dict[str, Row]) -> str:
    names = ("programs", "tried", "fired", "survived", "wrong", "lost", "hung", "danger")
    lines = [f"\n{'campaign':<12}" + "".join(f"{name:>10}" for name in names)]
    for campaign, row in rows.items():
        lines.append(f"{campaign:<12}" + "".join(f"{getattr(row, name):>10,}" for name in names))
    lines += [f"NOT TESTED: {name}: {why}" for name, row in rows.items() for why in sorted(row.skipped)]
    failed = sum(row.failed for row in rows.values())
    lines.append(f"{failed:,} failures" if failed else "no failures")
    return "\n".join(lines)
