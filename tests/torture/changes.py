"""Files truncated, emptied, grown, replaced, rewritten in place, truncated and regrown, or unlinked under readers.

A batch asked for after the change is a ``ReadError``, whatever the strategy: never rows of zeros, never rows of another
file, never another kind of error, never the end of the process. A change in the middle of a read may still give the
rows as they were. Two things no check can exclude are counted as dangers: a mapped file cut short while a thread reads
it ends the process with SIGBUS, and a file rewritten in place in the very middle of a read gives some of its new bytes.

Each change is made in a forked child of the program, so that the program sees how it ends.
"""

from __future__ import annotations

import faulthandler
import os
import random
import shutil
import signal
import threading
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from tests.torture.data import Case, fingerprint
from tests.torture.tally import Tally

import lowtide

MAPPED = ("remap", "advise", "map")
PATIENCE = 30


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 3)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def grow(path: Path) -> None:
    with path.open("ab") as file:
        file.write(bytes(4096))


def replace(path: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(bytes(path.stat().st_size))
    other.replace(path)


def rewrite(path: Path) -> None:
    """In place, the same size, other bytes."""
    with path.open("r+b") as file:
        file.write(bytes(path.stat().st_size))


def regrow(path: Path) -> None:
    """Cut short and made as long again, with a hole where the data was."""
    size = path.stat().st_size
    os.truncate(path, 0)
    os.truncate(path, size)


CHANGES: dict[str, Callable[[Path], None]] = {
    "truncated": truncate,
    "emptied": empty,
    "grown": grow,
    "replaced": replace,
    "rewritten": rewrite,
    "regrown": regrow,
    "unlinked": Path.unlink,
}
SHORTER = ("truncated", "emptied", "regrown")
OVERWRITING = ("rewritten", "regrown")
FINITE = ("chunks", "shuffled", "local", "gather")  # of these every batch of a pass is known
LONG_AGO = (
    1_000_000_000  # a file's clock ticks every few milliseconds: these were not written in the tick they change in
)


def program(rng: random.Random, directory: Path, tally: Tally, rounds: int) -> None:
    case = Case.chosen(rng)
    kept = directory / "kept"
    kept.mkdir()
    originals = case.write(kept)
    expected = set(case.calm(originals, 70))
    for _ in range(rounds):
        change = rng.choice(list(CHANGES))
        threads = rng.choice((0, 0, 1, 4))
        paths = [Path(shutil.copy(path, directory / path.name)) for path in originals]
        for path in paths:
            os.utime(path, (LONG_AGO, LONG_AGO))
        tally.tried += 1
        tally.fired += 1
        where = f"{case}: {change} under {threads} threads" if threads else f"{case}: {change} between batches"
        seed = rng.randrange(1 << 30)
        work = partial(changed_under, case, paths, change, threads, expected, random.Random(seed))
        ended, said = in_child(work)
        if ended == -signal.SIGBUS and threads and case.strategy in MAPPED and change in SHORTER:
            tally.found("danger", f"{where}: SIGBUS")
        elif said.startswith("torn") and change in OVERWRITING:
            tally.found("danger", f"{where}: a torn batch")
        elif ended == -999:
            tally.found("hung", f"{where}: expected an error or batches, got neither within {PATIENCE} s")
        elif ended < 0:
            tally.found("died", f"{where}: {signal.Signals(-ended).name}")
        elif ended:
            kind, _, words = said.strip().partition("\n")
            tally.found(kind or "died", f"{where}: {words or f'exit {ended}'}"[-900:])
        for path in paths:
            path.unlink(missing_ok=True)
        tally.tell_now_and_then()


def in_child(work: Callable[[], str]) -> tuple[int, str]:
    """How a forked child ended (minus a signal; -999: not at all) and what it said: nothing, or a kind and a line."""
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        # Its answer to SIGBUS walks the frames of threads that still run, and that itself may end in SIGSEGV.
        faulthandler.disable()
        code = 1
        try:
            said = work()
            code = 1 if said else 0
        except BaseException:
            said = "untyped error\n" + traceback.format_exc()
        os.write(send, said.encode()[-3000:])
        os._exit(code)
    os.close(send)
    ends = time.monotonic() + PATIENCE
    while (status := os.waitpid(child, os.WNOHANG))[0] == 0:
        if time.monotonic() > ends:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            os.close(receive)
            return -999, ""
        time.sleep(0.002)
    with os.fdopen(receive, "rb") as pipe:
        return os.waitstatus_to_exitcode(status[1]), pipe.read().decode()


def changed_under(
    case: Case, paths: list[Path], change: str, threads: int, expected: set[int], rng: random.Random
) -> str:
    """Nothing when all was well, else a kind of problem and a sentence, in two lines."""
    problems: list[str] = []
    stop = threading.Event()
    with case.open(paths) as opened:
        batches = case.begin(opened)
        for _ in range(rng.randint(0, 3)):
            next(batches)
        running = [
            threading.Thread(target=read_on, args=(case, opened, expected, stop, problems)) for _ in range(threads)
        ]
        for thread in running:
            thread.start()
        if threads:
            time.sleep(rng.random() * 0.02)
        touched = [rng.choice(paths)] if rng.random() < 0.5 else paths
        for path in touched:
            CHANGES[change](path)
        # Every file is read from here on: a whole pass meets the changed one.
        problems += after(case, opened)
        stop.set()
        for thread in running:
            thread.join()
    return problems[0] if problems else ""


def after(case: Case, opened: Any) -> list[str]:
    """Passes after the change: the first batch that touches a changed file must be a ReadError that names it."""
    try:
        for count, _ in enumerate(case.begin(opened)):
            if count > 200:
                break
    except lowtide.ReadError:
        return []
    except Exception as problem:
        return [f"untyped error\n{type(problem).__name__}: {problem}"]
    return ["not noticed\na whole pass after the change gave batches and no error"]


def read_on(case: Case, opened: Any, expected: set[int], stop: threading.Event, problems: list[str]) -> None:
    """A thread of its own pass: what it gets is right, or a ReadError ends it."""
    try:
        while not stop.is_set():
            for batch in case.begin(opened):
                if case.way in FINITE and fingerprint(batch) not in expected:
                    problems.append("torn\na batch read during the change is none of the file's")
                    return
                if stop.is_set():
                    return
    except (lowtide.ReadError, lowtide.BudgetError):
        return
    except Exception as problem:
        problems.append(f"untyped error\n{type(problem).__name__}: {problem}")
