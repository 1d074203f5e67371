"""Random programs of processes and threads that share what was opened, beside the same rows in memory.

A program opens an array or a corpus and then indexes, iterates, pickles, forks, spawns, starts threads, closes - in the
parent or in the child, while other threads read or not - as its seed has it. Whatever it reads must be what NumPy has;
a child goes on where its parent was and moves nothing in it. Every child is waited for with patience: one that does not
end is killed and counted.
"""

from __future__ import annotations

import os
import pickle
import random
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from tests.torture.data import ROWS, WIDTH, Case, fingerprint
from tests.torture.tally import Tally

import lowtide

PATIENCE = 60.0
# A spawned child gets the pickled iterator on its standard input and prints the fingerprints of what it reads.
SPAWNED = """
import pickle, sys
from tests.torture.data import fingerprint
batches, count = pickle.load(sys.stdin.buffer)
print([fingerprint(next(batches)) for _ in range(count)])
"""


class Program:
    """One opened thing, one iterator of it, and the batches that iterator must give."""

    def __init__(self, case: Case, paths: list[Path], rng: random.Random) -> None:
        self.case, self.rng = case, rng
        self.expected = case.calm(paths, 60)
        self.opened = case.open(paths, budget=16 << 20)
        dtype = np.uint16 if case.fed else np.uint32
        flat = np.concatenate([np.fromfile(path, dtype) for path in paths])
        self.rows = flat if case.fed else flat.reshape(ROWS, WIDTH)
        self.batches = case.begin(self.opened)
        self.place = 0
        self.held: list[tuple[Any, int]] = []

    def take(self) -> None:
        """The next batch, which must be the one that is due."""
        if self.place >= len(self.expected):
            self.batches, self.place = self.case.begin(self.opened), 0
        batch = next(self.batches)
        assert fingerprint(batch) == self.expected[self.place], f"batch {self.place} is another one"
        self.place += 1
        self.held = [*self.held[-3:], (batch, self.expected[self.place - 1])]

    def look(self) -> None:
        for batch, then in self.held:
            assert fingerprint(batch) == then, "a held batch changed"

    def index(self, rng: random.Random) -> None:
        first = rng.randrange(len(self.rows) - 40)
        keys: list[Any] = [first, slice(first, first + rng.randint(0, 40))]
        if not self.case.fed:
            keys += [[rng.randrange(ROWS) for _ in range(rng.randint(1, 30))], slice(first, None, 97)]
        key = rng.choice(keys)
        assert np.array_equal(self.opened[key], self.rows[key]), f"[{key}] is not what NumPy has"

    def cross_pickle(self) -> None:
        again = pickle.loads(pickle.dumps(self.batches))
        for wanted in self.expected[self.place : self.place + 2]:
            assert fingerprint(next(again)) == wanted, "an unpickled iterator goes on elsewhere"

    def spawn(self) -> None:
        count = min(3, len(self.expected) - self.place)
        child = subprocess.run(
            [sys.executable, "-c", SPAWNED],
            input=pickle.dumps((self.batches, count)),
            capture_output=True,
            check=False,
            timeout=PATIENCE,
        )
        assert child.returncode == 0, child.stderr.decode()[-500:]
        wanted = self.expected[self.place : self.place + count]
        assert child.stdout.decode().strip() == str(wanted), "a spawned child goes on elsewhere"

    def threads(self, rng: random.Random) -> None:
        """Several threads index and iterate at once; each has a pass of its own."""
        problems: list[str] = []

        def work(number: int) -> None:
            try:
                mine = random.Random(number)
                batches = self.case.begin(self.opened)
                for wanted in self.expected[:4]:
                    assert fingerprint(next(batches)) == wanted, "a thread's pass is another one"
                    self.index(mine)
            except BaseException:
                problems.append(traceback.format_exc())

        running = [threading.Thread(target=work, args=(rng.randrange(1 << 30),)) for _ in range(rng.randint(2, 4))]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
        assert not problems, problems[0]

    def fork(self, rng: random.Random, depth: int) -> None:
        """A child that runs a program of its own and ends; sometimes it closes what it inherited."""
        steps, closes = rng.randint(1, 4), rng.random() < 0.3
        seed = rng.randrange(1 << 30)

        def work() -> None:
            run(self, random.Random(seed), steps, depth + 1)
            if closes:
                self.opened.close()

        ended, said = child_of(work)
        assert ended == 0, f"a forked child {'hung' if ended == -999 else f'ended with {ended}'}: {said}"


def run(program: Program, rng: random.Random, steps: int, depth: int = 0) -> None:
    """Some steps; deep inside children there are no more children."""
    ways: list[Callable[[], None]] = [program.take, program.take, program.look, lambda: program.index(rng)]
    ways += [program.cross_pickle, lambda: program.threads(rng)]
    if depth < 2:
        ways += [lambda: program.fork(rng, depth)] * 2
    if depth == 0 and rng.random() < 0.1:
        ways += [program.spawn]
    for _ in range(steps):
        rng.choice(ways)()
    program.look()


def child_of(work: Callable[[], None]) -> tuple[int, str]:
    """How a forked child ended, -999 for not at all, and its traceback."""
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException:
            os.write(send, traceback.format_exc()[-2000:].encode())
        os._exit(code)
    os.close(send)
    ends = time.monotonic() + PATIENCE
    while (status := os.waitpid(child, os.WNOHANG))[0] == 0 and time.monotonic() < ends:
        time.sleep(0.001)
    if status[0] == 0:
        os.kill(child, signal.SIGABRT)
        os.waitpid(child, 0)
        os.close(receive)
        return -999, "its stacks are above"
    with os.fdopen(receive, "rb") as pipe:
        return os.waitstatus_to_exitcode(status[1]), pipe.read().decode()


def disturbed(program: Program, stop: threading.Event) -> threading.Thread:
    """A thread that reads all the while, so that forks meet locks that are held."""

    def work() -> None:
        while not stop.is_set():
            try:
                for batch in program.case.begin(program.opened):
                    del batch
                    if stop.is_set():
                        return
            except (ValueError, lowtide.LowtideError):
                return  # closed meanwhile

    thread = threading.Thread(target=work)
    thread.start()
    return thread


def program(rng: random.Random, directory: Path, tally: Tally, rounds: int) -> None:
    case = Case.chosen(rng)
    paths = case.write(directory)
    for _ in range(rounds):
        tally.tried += 1
        tally.fired += 1
        one = Program(case, paths, rng)
        stop = threading.Event()
        busy = [disturbed(one, stop) for _ in range(rng.choice((0, 1, 2)))]
        try:
            run(one, rng, rng.randint(3, 8))
        except Exception as problem:
            kind = "hung" if "hung" in str(problem) else "wrong" if isinstance(problem, AssertionError) else "error"
            words = traceback.format_exc()[-900:]
            tally.found(kind, f"{case}, {len(busy)} threads reading: {problem}"[:600] + f"\n{words}")
        finally:
            stop.set()
            for thread in busy:
                thread.join()
            one.opened.close()
        tally.tell_now_and_then()
