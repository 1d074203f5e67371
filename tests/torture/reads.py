"""The n-th read fails: EIO, ESTALE, EINTR, a short read, an empty one; once, or until the disk is healed.

Every batch is the right one or a ``ReadError`` with a path, and a step that failed can be asked for again and gives the
batch that was due. The disk stands where the system call is (`tests.faults`); the mapped strategies only look at the
page cache through it, and must not mind. The native engine makes its calls elsewhere: this campaign asks for Python's.
"""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

from tests.faults import FAULTS, HARMLESS, NAMED, Disk, reading_from
from tests.torture.data import Case, fingerprint
from tests.torture.tally import Tally

import lowtide

STEPS = 12
RETRIES = 4  # errors of one step that a disk may cause before it is healed


def program(rng: random.Random, directory: Path, tally: Tally, rounds: int) -> None:
    os.environ["LOWTIDE_ENGINE"] = "python"
    case = Case.chosen(rng)
    paths = case.write(directory)
    expected = case.calm(paths, STEPS)
    for _ in range(rounds):
        fault = rng.choice(list(FAULTS))
        # Half of the faults hit the first calls, where a store learns what the disk can do.
        at = rng.randint(1, 6) if rng.random() < 0.5 else rng.randint(1, 150)
        lasting = rng.random() < 0.3 and fault != "EINTR"  # who is interrupted for ever tries for ever
        disk = Disk(FAULTS[fault], at=at, persistent=lasting)
        tally.tried += 1
        with case.open(paths) as opened, reading_from(disk):
            where = f"{case}: {fault} at read {at}{' and after it' if lasting else ''}"
            error = "" if fault in HARMLESS and not lasting else fault
            read_through(case.begin(opened), expected, disk, error, where, tally)
        tally.fired += bool(disk.fired)
        tally.tell_now_and_then()


def read_through(batches: Any, expected: list[int], disk: Disk, error: str, where: str, tally: Tally) -> None:
    """A whole pass, asking again after each error; a disk that keeps failing is healed. ``error`` "": none may come."""
    failures = 0
    for step, wanted in enumerate(expected):
        while True:
            try:
                batch = next(batches)
            except lowtide.ReadError as problem:
                failures += 1
                judge(problem, disk, error, where, tally)
                if failures >= RETRIES:
                    disk.heal()
                if failures > 2 * RETRIES:
                    tally.found("never heals", f"{where}: step {step}: {problem}")
                    return
                continue
            except StopIteration:
                tally.found("lost", f"{where}: expected {len(expected)} batches, got {step}")
                return
            except Exception as problem:
                tally.found("untyped error", f"{where}: step {step}: {type(problem).__name__}: {problem}")
                return
            break
        found = fingerprint(batch)
        if found != wanted:
            kind = "lost" if found in expected[step + 1 :] else "repeated" if found in expected else "wrong rows"
            tally.found(kind, f"{where}: step {step} gave another batch than the calm pass")
            return


def judge(problem: lowtide.ReadError, disk: Disk, error: str, where: str, tally: Tally) -> None:
    """An error must be one that the disk made, and say so."""
    if not disk.fired:
        tally.found("false error", f"{where}: no read had failed, got {problem}")
    elif not error:
        tally.found("not continued", f"{where}: expected the read to be continued, got {problem}")
    elif error in NAMED and problem.errno != NAMED[error]:
        tally.found("wrong error", f"{where}: expected errno {NAMED[error]}, got {problem.errno}: {problem}")
    elif not problem.path:
        tally.found("wrong error", f"{where}: expected a path, got none: {problem}")
