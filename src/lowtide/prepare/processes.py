"""The local engine: worker processes on this machine, or none.

One idea: tasks go out in input order to whoever has least to do, pieces come back in any order and wait in a buffer of
bounded size for their turn; when it is full only the piece that is next in order is taken, and workers wait at their
sockets. What can only be read from the beginning - compressed files - is read by a thread here and its blocks are
handed out, so that one large .gz keeps every worker busy. A worker that is killed is replaced once per task.

Costs what ``held`` says for pieces, and two tasks per worker. Bytes are encoded without workers: widening is faster
than any way to send it to another process.
"""

from __future__ import annotations

import queue
import selectors
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from lowtide.errors import LowtideError
from lowtide.prepare.blocks import Raw, raw_blocks
from lowtide.prepare.pieces import Piece, Recipe, Worker
from lowtide.prepare.splits import Split
from lowtide.prepare.transport import pair, receive, send

_AHEAD = 2  # tasks a worker has: the one it works on and the next


@dataclass
class _Task:
    number: int
    split: Split
    raw: Raw | None
    skip: int
    pieces: deque[Piece] = field(default_factory=deque)
    received: int = 0
    done: bool = False
    deaths: int = 0


class _Process:
    """One worker and what it has to do."""

    def __init__(self, recipe: Recipe) -> None:
        self.end, theirs = pair()
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "lowtide.prepare.worker", str(theirs.fileno())], pass_fds=[theirs.fileno()]
            )
        self.tasks: deque[_Task] = deque()
        send(self.end, recipe)

    def give(self, task: _Task) -> None:
        self.tasks.append(task)
        send(self.end, (task.number, task.split, task.raw, task.skip + task.received))

    def stop(self) -> None:
        self.end.close()
        self.process.kill()
        self.process.wait()


def run_inline(splits: Iterator[Split], recipe: Recipe, skip: int) -> Iterator[Piece]:
    """Every piece in order, encoded by a thread of this process."""
    worker = Worker(recipe)

    def pieces() -> Iterator[Piece]:
        first = skip
        for split in splits:
            yield from worker.pieces(split, first)
            first = 0

    return ahead(pieces(), 2)


def run_local(splits: Iterator[Split], recipe: Recipe, skip: int, workers: int, held: int) -> Iterator[Piece]:
    """Every piece in order, encoded by ``workers`` processes; at most ``held`` bytes of pieces wait here."""
    pool = _Pool(recipe, workers, held)
    try:
        yield from pool.run(ahead(_tasks(splits, recipe, skip), 2))
    finally:
        pool.stop()


class _Pool:
    def __init__(self, recipe: Recipe, workers: int, held: int) -> None:
        self._recipe, self._most = recipe, held
        self._processes = [_Process(recipe) for _ in range(workers)]
        self._waiting: deque[_Task] = deque()  # in input order, the next one to be given out first
        self._held = 0

    def run(self, tasks: Iterator[_Task]) -> Iterator[Piece]:
        exhausted = False
        while True:
            while not exhausted and (process := self._idlest()) is not None:
                task = next(tasks, None)
                if task is None:
                    exhausted = True
                    break
                self._waiting.append(task)
                self._give(process, task)
            if not self._waiting:
                return
            head = self._waiting[0]
            if head.pieces:
                piece = head.pieces.popleft()
                self._held -= piece.ids.nbytes
                yield piece
            elif head.done:
                self._waiting.popleft()
            else:
                self._receive(head)

    def stop(self) -> None:
        for process in self._processes:
            process.stop()

    def _idlest(self) -> _Process | None:
        """A worker that can take another task; none while too much waits for its turn."""
        if self._held > self._most:
            return None
        process = min(self._processes, key=lambda one: len(one.tasks))
        return process if len(process.tasks) < _AHEAD else None

    def _give(self, process: _Process, task: _Task) -> None:
        try:
            process.give(task)
        except OSError:
            self._replace(process)

    def _receive(self, head: _Task) -> None:
        """Wait for a message: from anyone, or, when too much waits already, from the one whose turn it is."""
        asked = self._processes
        if self._held > self._most:
            asked = [process for process in asked if head in process.tasks]
        with selectors.DefaultSelector() as selector:
            for process in asked:
                selector.register(process.end, selectors.EVENT_READ, process)
            ready = [key.data for key, _ in selector.select()]
        for process in ready:
            self._take(process)

    def _take(self, process: _Process) -> None:
        try:
            _, content = receive(process.end)
        except (EOFError, OSError):
            self._replace(process)
            return
        task = process.tasks[0]
        if isinstance(content, Exception):
            raise content
        if content is None:
            task.done = True
            process.tasks.popleft()
        else:
            task.received += 1
            task.pieces.append(content)
            self._held += content.ids.nbytes

    def _replace(self, process: _Process) -> None:
        """A worker is gone: another takes its tasks, from the piece that did not arrive."""
        process.process.wait()
        code, tasks = process.process.returncode, list(process.tasks)
        if tasks:
            tasks[0].deaths += 1
            if tasks[0].deaths > 1:
                raise LowtideError(
                    f"{tasks[0].split.source.path}: expected a worker to encode it, got two that died (exit {code}). "
                    "Give fewer workers more memory with --workers, and run the same command again."
                )
        process.stop()
        fresh = _Process(self._recipe)
        self._processes[self._processes.index(process)] = fresh
        for task in tasks:
            fresh.give(task)


def _tasks(splits: Iterator[Split], recipe: Recipe, skip: int) -> Iterator[_Task]:
    number = 0
    for split in splits:
        if split.streamed:
            for raw in raw_blocks(split, recipe.request, skip):
                yield _Task(number, split, raw, 0)
                number += 1
        else:
            yield _Task(number, split, None, skip)
            number += 1
        skip = 0


def ahead(items: Iterator[Any], depth: int) -> Iterator[Any]:
    """``items`` made by a thread, ``depth`` of them before they are asked for."""
    line: queue.Queue[tuple[Any, BaseException | None]] = queue.Queue(depth)
    stopped = threading.Event()

    def put(entry: tuple[Any, BaseException | None]) -> bool:
        while not stopped.is_set():
            try:
                line.put(entry, timeout=0.1)
                return True
            except queue.Full:
                continue
        return False

    def make() -> None:
        try:
            for item in items:
                if not put((item, None)):
                    return
            put((None, StopIteration()))
        except BaseException as problem:
            put((None, problem))

    thread = threading.Thread(target=make, daemon=True)
    thread.start()
    try:
        while True:
            item, problem = line.get()
            if isinstance(problem, StopIteration):
                return
            if problem is not None:
                raise problem
            yield item
    finally:
        stopped.set()
        thread.join()
