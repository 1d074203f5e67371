"""The local engine: worker processes on this machine, or none.

Tasks go out in input order to whoever has least to do, blocks come back in any order and wait in a buffer of
bounded size for their turn; when it is full only the block that is next in order is taken, and workers wait at their
sockets. What can only be read from the beginning - compressed files - is read by a thread here and its blocks are
handed out, so that one large .gz keeps every worker busy. A worker that is killed is replaced once per task.

Blocks travel through sockets by pickle, which leaves the arrays out: they follow as they are, so nothing is copied on
the way in, and once on the way out. For processes this program started, never for data files.

Costs what ``held`` says for blocks, and two tasks per worker. Bytes are encoded without workers: widening is faster
than any way to send it to another process.
"""

from __future__ import annotations

import pickle
import queue
import selectors
import socket
import struct
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from lowtide.errors import LowtideError
from lowtide.prepare.encoding import BlockEncoder, EncodedBlock, Recipe
from lowtide.prepare.inputs.sections import InputSection
from lowtide.prepare.inputs.text_blocks import TextBlock, text_blocks

Item = TypeVar("Item")
_AHEAD = 2  # tasks a worker has: the one it works on and the next

_BUFFER = 4 * 1024 * 1024  # asked for; the kernel gives what its limits allow


@dataclass
class _Task:
    number: int
    section: InputSection
    text: TextBlock | None
    skip: int
    blocks: deque[EncodedBlock] = field(default_factory=deque)
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
        send(self.end, (task.number, task.section, task.text, task.skip + task.received))

    def stop(self) -> None:
        self.end.close()
        self.process.kill()
        self.process.wait()


def encoded_here(sections: Iterator[InputSection], recipe: Recipe, skip: int) -> Iterator[EncodedBlock]:
    """Every block in order, encoded by a thread of this process."""
    encoder = BlockEncoder(recipe)

    def blocks() -> Iterator[EncodedBlock]:
        first = skip
        for section in sections:
            yield from encoder.blocks(section, first)
            first = 0

    return ahead(blocks(), 2)


def encoded_by_processes(
    sections: Iterator[InputSection], recipe: Recipe, skip: int, workers: int, held: int
) -> Iterator[EncodedBlock]:
    """Every block in order, encoded by ``workers`` processes; at most ``held`` bytes of blocks wait here."""
    pool = _Pool(recipe, workers, held)
    try:
        yield from pool.blocks(ahead(_tasks(sections, recipe, skip), 2))
    finally:
        pool.stop()


class _Pool:
    def __init__(self, recipe: Recipe, workers: int, held: int) -> None:
        self._recipe, self._most = recipe, held
        self._processes = [_Process(recipe) for _ in range(workers)]
        self._waiting: deque[_Task] = deque()  # in input order, the next one to be given out first
        self._held = 0

    def blocks(self, tasks: Iterator[_Task]) -> Iterator[EncodedBlock]:
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
            if head.blocks:
                block = head.blocks.popleft()
                self._held -= block.ids.nbytes
                yield block
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
            task.blocks.append(content)
            self._held += content.ids.nbytes

    def _replace(self, process: _Process) -> None:
        """A worker is gone: another takes its tasks, from the block that did not arrive."""
        process.process.wait()
        code, tasks = process.process.returncode, list(process.tasks)
        if tasks:
            tasks[0].deaths += 1
            if tasks[0].deaths > 1:
                raise LowtideError(
                    f"{tasks[0].section.source.path}: expected a worker to encode it, got two that died (exit {code}). "
                    "Give fewer workers more memory with --workers, and run the same command again."
                )
        process.stop()
        fresh = _Process(self._recipe)
        self._processes[self._processes.index(process)] = fresh
        for task in tasks:
            fresh.give(task)


def _tasks(sections: Iterator[InputSection], recipe: Recipe, skip: int) -> Iterator[_Task]:
    number = 0
    for section in sections:
        if section.streamed:
            for text in text_blocks(section, recipe.request, skip):
                yield _Task(number, section, text, 0)
                number += 1
        else:
            yield _Task(number, section, None, skip)
            number += 1
        skip = 0


@dataclass(frozen=True)
class _Ended:
    """Nothing more comes, because of this problem if there is one."""

    problem: BaseException | None = None


def ahead(items: Iterator[Item], depth: int) -> Iterator[Item]:
    """``items`` made by a thread, ``depth`` of them before they are asked for."""
    line: queue.Queue[Item | _Ended] = queue.Queue(depth)
    stopped = threading.Event()

    def put(entry: Item | _Ended) -> bool:
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
                if not put(item):
                    return
            put(_Ended())
        except BaseException as problem:
            put(_Ended(problem))

    thread = threading.Thread(target=make, daemon=True)
    thread.start()
    try:
        while True:
            entry = line.get()
            if not isinstance(entry, _Ended):
                yield entry
            elif entry.problem is not None:
                raise entry.problem
            else:
                return
    finally:
        stopped.set()
        thread.join()


def pair() -> tuple[socket.socket, socket.socket]:
    """Two connected ends."""
    ends = socket.socketpair()
    for end in ends:
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            end.setsockopt(socket.SOL_SOCKET, option, _BUFFER)
    return ends


def send(end: socket.socket, message: object) -> None:
    buffers: list[pickle.PickleBuffer] = []
    body = pickle.dumps(message, protocol=5, buffer_callback=buffers.append)
    views = [memoryview(body), *(buffer.raw() for buffer in buffers)]
    end.sendall(struct.pack(f"<Q{len(views)}Q", len(views), *(len(view) for view in views)))
    for view in views:
        end.sendall(view)


def receive(end: socket.socket) -> Any:
    """The next message; EOFError where the other side is gone."""
    (count,) = struct.unpack("<Q", _exactly(end, 8))
    sizes = struct.unpack(f"<{count}Q", _exactly(end, 8 * count))
    body, *buffers = [_exactly(end, size) for size in sizes]
    return pickle.loads(body, buffers=buffers)


def _exactly(end: socket.socket, size: int) -> memoryview:
    buffer = np.empty(size, np.uint8).data if size else memoryview(b"")
    done = 0
    while done < size:
        try:
            got = end.recv_into(buffer[done:])
        except ConnectionResetError:
            got = 0
        if got == 0:
            raise EOFError
        done += got
    return buffer
