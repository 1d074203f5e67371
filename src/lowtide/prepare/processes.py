"""The local engine: worker processes on this machine, or none.

Tasks go out in input order to the worker with the least to do. Blocks come back in any order and wait for their turn in
a buffer of bounded size; when it is full, only the next block in order is taken, and workers wait at their sockets.
Compressed files, which can only be read from the beginning, are read by a thread here that hands out their blocks, so
that one large .gz keeps every worker busy. A worker that is killed is replaced once per task.

Blocks travel through sockets by pickle: for processes this program started, never for data files. Their ids, which are
most of it, lie in memory that worker and main process share, in one of a few slots, and are written to the shard from
there. Costs what ``held`` says for blocks, and two tasks per worker. Bytes are encoded without workers, because
widening is faster than sending; so is everything else if there is no memory for a second process.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import wait
from typing import BinaryIO, TypeVar

import numpy as np

from lowtide.errors import LowtideError
from lowtide.prepare.encoding import BlockEncoder, EncodedBlock, Recipe
from lowtide.prepare.inputs.sections import InputSection
from lowtide.prepare.inputs.text_blocks import TextBlock, text_blocks
from lowtide.storage.release import release

Item = TypeVar("Item")
# Without the first two, glibc maps and unmaps every block, and a fifth of a worker's time goes into fetching pages.
# Without the last, NumPy's import starts threads that spin for as long as the rest of it takes.
ENVIRONMENT = {
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(32 << 20),
    "OPENBLAS_NUM_THREADS": "1",
}
SLOT, SLOTS = 4 << 20, 8  # bytes for the ids of one block, and how many blocks of a worker may wait here
_AHEAD = 4  # tasks per worker: the current one, the next, which is read already, and some while this process writes


@dataclass(frozen=True)
class _Lent:
    """A block whose ids lie in a slot of this worker's memory; -1: in memory of their own."""

    block: EncodedBlock
    process: _Process
    slot: int

    def give_back(self) -> None:
        """The ids are no longer needed. A worker that is gone needs no slot; its end is noticed elsewhere."""
        if self.slot >= 0:
            with contextlib.suppress(OSError):
                self.process.end.send(self.slot)


@dataclass
class _Task:
    number: int
    section: InputSection
    text: TextBlock | None
    skip: int
    blocks: deque[_Lent] = field(default_factory=deque)
    received: int = 0
    done: bool = False
    deaths: int = 0


class _Process:
    """One worker and what it has to do."""

    def __init__(self) -> None:
        self.end, theirs = Pipe()
        with theirs, _memory_file() as file:
            self._ids = mmap.mmap(file.fileno(), SLOTS * SLOT)
            passed = (theirs.fileno(), file.fileno())
            self.process = subprocess.Popen(
                [sys.executable, "-m", "lowtide.prepare.worker", *map(str, passed)],
                pass_fds=passed,
                env=os.environ | ENVIRONMENT,
            )
        self.tasks: deque[_Task] = deque()

    def begin(self, recipe: Recipe) -> None:
        """Waits until the worker has read its recipe, which is more than a socket holds. One that is already gone is
        noticed with its first task."""
        with contextlib.suppress(OSError):
            self.end.send(recipe)

    def give(self, task: _Task) -> None:
        self.tasks.append(task)
        self.end.send((task.number, task.section, task.text, task.skip + task.received))

    def receive(self) -> tuple[_Lent | Exception | None, bool]:
        """What the worker sends: a block, None if a task has none, or what went wrong; whether the task ends here."""
        content, last, slot, dtype, count = self.end.recv()
        if slot >= 0:
            content.ids = np.frombuffer(self._ids, dtype, count, slot * SLOT)
        return (_Lent(content, self, slot) if isinstance(content, EncodedBlock) else content), last

    def stop(self) -> None:
        self.end.close()
        self.process.kill()
        self.process.wait()


def _memory_file() -> BinaryIO:
    """A file without a name, in memory where the system has that."""
    if hasattr(os, "memfd_create"):
        file: BinaryIO = os.fdopen(os.memfd_create("lowtide-ids"), "w+b")
    else:
        file = tempfile.TemporaryFile()  # noqa: SIM115 - the caller closes it
    file.truncate(SLOTS * SLOT)
    return file


def encoded_here(sections: Iterator[InputSection], recipe: Recipe, skip: int, depth: int) -> Iterator[EncodedBlock]:
    """Every block in order, encoded by a thread of this process ``depth`` blocks ahead. 0: memory is scarce, and memory
    that the libraries freed is given back after every block (164 MiB against 55 with a vocabulary of 50,000)."""
    encoder = BlockEncoder(recipe)

    def blocks() -> Iterator[EncodedBlock]:
        first = skip
        for section in sections:
            for block in encoder.blocks(section, first):
                yield block
                if not depth:
                    release()
            first = 0

    return ahead(blocks(), depth) if depth else blocks()


class WorkerProcesses:
    """Worker processes. They can be started before it is known what they will do: their imports take a while."""

    def __init__(self) -> None:
        self._processes: list[_Process] = []
        self._waiting: deque[_Task] = deque()  # in input order, the next one to be given out first
        self._held = 0

    def __enter__(self) -> WorkerProcesses:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()
        for process in self._processes:
            process.stop()

    def _end(self) -> None:
        """Have all of them end, without waiting: it takes a large process a while, in which the disk can be waited
        for."""
        for process in self._processes:
            process.process.kill()

    def start(self, workers: int) -> None:
        """Have at least so many."""
        while len(self._processes) < workers:
            self._processes.append(_Process())

    def encoded(self, sections: Iterator[InputSection], recipe: Recipe, skip: int, held: int) -> Iterator[EncodedBlock]:
        """Every block in order; at most ``held`` bytes of blocks wait here. The ids of a block are lent until the next
        one is asked for."""
        self._recipe, self._most = recipe, held
        for process in self._processes:
            process.begin(recipe)
        return self._blocks(ahead(_tasks(sections, recipe, skip), 2))

    def _blocks(self, tasks: Iterator[_Task]) -> Iterator[EncodedBlock]:
        exhausted = False
        while True:
            while not exhausted and (process := self._idlest()) is not None:
                task = next(tasks, None)
                if task is None:
                    exhausted = True
                    break
                self._waiting.append(task)
                try:
                    process.give(task)
                except OSError:
                    self._replace(process)
            if not self._waiting:
                self._end()
                return
            head = self._waiting[0]
            if head.blocks:
                lent = head.blocks.popleft()
                self._held -= lent.block.ids.nbytes
                yield lent.block
                lent.give_back()
            elif head.done:
                self._waiting.popleft()
            else:
                self._receive(head)

    def _idlest(self) -> _Process | None:
        """A worker that can take another task; none while too many blocks wait for their turn."""
        if self._held > self._most:
            return None
        process = min(self._processes, key=lambda one: len(one.tasks))
        return process if len(process.tasks) < _AHEAD else None

    def _receive(self, head: _Task) -> None:
        """Wait for a message from any worker or, if too many blocks wait already, from the one whose turn it is."""
        full = self._held > self._most
        asked = {process.end: process for process in self._processes if not full or head in process.tasks}
        for end in wait(list(asked)):
            self._take(asked[end])  # type: ignore[index]

    def _take(self, process: _Process) -> None:
        try:
            content, last = process.receive()
        except (EOFError, OSError):
            self._replace(process)
            return
        task = process.tasks[0]
        if isinstance(content, Exception):
            raise content
        if content is not None:
            task.received += 1
            task.blocks.append(content)
            self._held += content.block.ids.nbytes
        if last:
            task.done = True
            process.tasks.popleft()

    def _replace(self, process: _Process) -> None:
        """Replace a worker that is gone; its tasks continue from the first block that did not arrive."""
        process.process.wait()
        code, tasks = process.process.returncode, list(process.tasks)
        if tasks:
            tasks[0].deaths += 1
            if tasks[0].deaths > 1:
                raise LowtideError(
                    f"{tasks[0].section.source.path}: expected a worker to encode it, got two that died (exit {code}). "
                    "Leave more memory for each with a smaller --workers, and run the same command again."
                )
        process.stop()
        fresh = _Process()
        fresh.begin(self._recipe)
        self._processes[self._processes.index(process)] = fresh
        for task in tasks:
            fresh.give(task)


def _tasks(sections: Iterator[InputSection], recipe: Recipe, skip: int) -> Iterator[_Task]:
    number = 0
    for section in sections:
        texts = text_blocks(section, recipe.request, skip) if section.streamed else [None]
        for text in texts:
            yield _Task(number, section, text, 0 if section.streamed else skip)
            number += 1
        skip = 0


@dataclass(frozen=True)
class _Ended:
    """End the stream, with this problem if there is one."""

    problem: BaseException | None = None


def ahead(items: Iterator[Item], depth: int) -> Iterator[Item]:
    """``items``, made by a thread up to ``depth`` ahead of the consumer."""
    line, room, stopped = queue.SimpleQueue[Item | _Ended](), queue.SimpleQueue[None](), threading.Event()
    for _ in range(depth):
        room.put(None)

    def make() -> None:
        ended = _Ended()
        try:
            for item in items:
                room.get()
                if stopped.is_set():
                    return
                line.put(item)
        except BaseException as problem:
            ended = _Ended(problem)
        line.put(ended)

    thread = threading.Thread(target=make, daemon=True)
    thread.start()
    try:
        while not isinstance(entry := line.get(), _Ended):
            room.put(None)
            yield entry
        if entry.problem is not None:
            raise entry.problem
    finally:
        stopped.set()
        room.put(None)
        thread.join()
