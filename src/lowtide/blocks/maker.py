"""The process that makes blocks: one beside each reading process, started by its first missing block, gone with it.

Foreign code - obstore's threads, decoders of formats - runs here, so a fork of the reading process at any moment stays
safe, and hostile bytes cannot end the program. Messages are JSON, one per packet of a socket: ``call`` runs a function
named by module, and what that returns is run beside other work to make the answer; ``make`` has blocks of a file made
by a source named the same way, so this room knows no formats. Blocks somebody waits for come before those that are only
wanted soon; missing neighbours are one request of up to 8 MiB; a lock on a block's mark decides which process makes it,
and the others look now and then whether it is there.

There is no event loop, whose import would be a third of the start: the main thread takes messages, others take runs of
blocks from one queue, each the next as soon as it is done with the last. Bytes are checked, written and marked by the
thread that received or decoded them. What they hold is bounded by the sources: six bodies of 1.25 MiB, or what so many
decoders need. Ends when its socket closes, or its parent is gone.
"""

from __future__ import annotations

import heapq
import itertools
import json
import os
import pkgutil
import select
import signal
import socket
import sys
import threading
from _thread import start_new_thread
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from queue import SimpleQueue
from time import monotonic, sleep
from typing import Any

from lowtide.blocks.block_file import BLOCK, CHECKSUM, BlockFile, make_files
from lowtide.blocks.block_writing import CutByHandError, Writing
from lowtide.blocks.disk import LEAST, Disk, now, punch
from lowtide.blocks.messages import KINDS, PACKET, VARIABLES, CrowdedError, in_runs
from lowtide.errors import WriteError

DECODING = (os.cpu_count() or 1) + 4  # runs that are decoded at a time
REQUEST = 8 * 1024 * 1024 // BLOCK  # blocks of one request, at most
_LOOK_AGAIN = 0.005  # seconds between looks whether another process has made a block
_ROOM_COMES = 20.0  # seconds without room, while nobody makes any block, after which there will be none


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the reader, which ends us
    with socket.socket(fileno=int(sys.argv[1])) as end:
        Maker(end).serve()


@dataclass
class _Question:
    """A message that waits for ``left`` blocks."""

    number: int
    left: int = 0


@dataclass
class _Pending:
    """A block that is to be made, and who waits for it."""

    urgent: bool
    running: bool = False
    first: bool = False  # among those who wait is the first in line
    questions: list[_Question] = field(default_factory=list)


@dataclass(order=True)
class _QueuedRun:
    """Neighbouring blocks in the queue."""

    rank: tuple[bool, int]
    job: BlockJob = field(compare=False)
    blocks: list[int] = field(compare=False)


@dataclass(frozen=True)
class BlockJob:
    """What blocks are made of and where they go; ``stated``: of ``disk=``."""

    file: BlockFile
    source: Any
    disk: Disk
    stated: int | None


class Maker:
    """Answers one reading process."""

    def __init__(self, end: socket.socket) -> None:
        self._end, self._parent = end, os.getppid()
        self._files: dict[str, BlockFile] = {}
        self._disks: dict[str, Disk] = {}
        self._sources: dict[str, Any] = {}
        self._claimed: Counter[tuple[str, int]] = Counter()
        self._claims: dict[int, list[tuple[str, int]]] = {}  # by the question that made them
        self._answers: SimpleQueue[bytes] = SimpleQueue()
        self._numbers = itertools.count()
        self._turn = threading.Condition()  # of all that follows
        self._pending: dict[tuple[str, int], _Pending] = {}
        self._queue: list[_QueuedRun] = []
        self._working = self._idle = 0  # threads

    def serve(self) -> None:
        start_new_thread(self._send, ())
        coming, stamped = select.poll(), monotonic()
        coming.register(self._end, select.POLLIN)
        while os.getppid() == self._parent:
            if coming.poll(1000):
                self._receive()
            if monotonic() > stamped + 1:
                stamped = monotonic()
                for place, block in self._claimed:
                    self._files[place].needed(block, 1, now())
        os._exit(0)

    # Messages, by the main thread

    def _receive(self) -> None:
        packet = b""
        with suppress(OSError):
            packet = self._end.recv(2 * PACKET)
        if not packet:
            os._exit(0)  # the reader is gone: whatever is under way is nobody's
        message = json.loads(packet)
        try:
            if message["do"] == "done":
                self._let_go(message["ids"])
            elif message["do"] == "call":
                work = _built(message["function"], message["arguments"], message["environment"])
                start_new_thread(self._called, (message["id"], work))
            else:
                self._make(message)
        except Exception as problem:
            self._answer(message["id"], {"error": described(problem)})

    def _called(self, number: int, work: Any) -> None:
        try:
            self._answer(number, {"result": work()})
        except BaseException as problem:  # foreign code may raise anything
            self._answer(number, {"error": described(problem)})

    def _answer(self, number: int, said: dict[str, Any]) -> None:
        text = json.dumps(said).encode()
        for at in range(0, len(text), PACKET):
            self._answers.put(f"{number} {int(at + PACKET >= len(text))} ".encode() + text[at : at + PACKET])

    def _send(self) -> None:
        while True:
            packet = self._answers.get()
            with suppress(OSError):
                self._end.sendall(packet)

    # Blocks

    def _make(self, message: dict[str, Any]) -> None:
        job = self._job(message)
        place, urgent = job.file.place, bool(message["urgent"])
        if message["claim"]:  # until the reader says that it has read them
            blocks = [(place, block) for first, count in message["runs"] for block in range(first, first + count)]
            self._claims[message["id"]] = blocks
            self._claimed.update(blocks)
        missing: list[int] = []
        for first, count in message["runs"]:
            job.file.needed(first, count, now())
            marks = job.file.read_marks(first, count)
            missing += [first + number for number, mark in enumerate(marks) if mark % 2 == 0]
        question, wanted = _Question(message["id"], len(missing)), []
        with self._turn:
            for block in missing:
                pending = self._pending.get((place, block))
                if pending is None:
                    self._pending[place, block] = pending = _Pending(urgent)
                    wanted.append(block)
                elif urgent and not pending.urgent and not pending.running:
                    pending.urgent = True
                    wanted.append(block)
                pending.first = pending.first or message["first"]
                pending.questions.append(question)
            most = REQUEST if job.stated is None else max(1, min(REQUEST, job.stated // BLOCK // 8))
            for run in in_runs(wanted + self._beside(job, wanted, most), most):
                heapq.heappush(self._queue, _QueuedRun((not urgent, next(self._numbers)), job, run))
            self._wake()
        if not missing:
            self._answer(message["id"], {})

    def _let_go(self, ids: list[int]) -> None:
        for number in ids:
            self._claimed.subtract(self._claims.pop(number, ()))
        self._claimed += Counter()  # without those that nobody claims

    def _beside(self, job: BlockJob, wanted: list[int], most: int) -> list[int]:
        """Blocks that come with these without more work: what is decoded as one. None of objects."""
        covering = getattr(job.source, "covering", None)
        found: set[int] = set()
        if covering is None:
            return []
        for run in in_runs(wanted, most):
            first, last = covering(run[0] * BLOCK, min(job.file.size, (run[-1] + 1) * BLOCK))
            inside = range(-(-first // BLOCK), last // BLOCK if last < job.file.size else job.file.count)[: 4 * most]
            marks = job.file.read_marks(inside.start, len(inside))
            found.update(block for block, mark in zip(inside, marks, strict=True) if mark % 2 == 0)
        beside = [block for block in found if (job.file.place, block) not in self._pending]
        self._pending.update({(job.file.place, block): _Pending(False) for block in beside})
        return beside

    def _job(self, message: dict[str, Any]) -> BlockJob:
        place, root = message["place"], message["root"]
        file = self._files.get(place)
        if file is None or not file.alive:
            make_files(place, message["size"])  # of one that was cut by hand nothing is believed any more
            self._files[place] = file = BlockFile(place, message["size"])
        disk = self._disks.get(root)
        if disk is None or not disk.alive:
            self._disks[root] = disk = Disk(root)
        said = json.dumps(message["source"])
        source = self._sources.get(said)
        if source is None:
            while len(self._sources) >= 256:
                self._sources.pop(next(iter(self._sources)))
            source = _built(message["source"]["function"], message["source"]["arguments"], message["environment"])
            self._sources[said] = source
        return BlockJob(file, source, disk, message["disk"])

    def _wake(self) -> None:
        """One more thread, where there is something for it; it wakes the next."""
        if self._startable():
            if self._idle:
                self._turn.notify()
            else:
                start_new_thread(self._work, ())  # a Thread would wait until it runs, and all others for us

    def _startable(self) -> bool:
        return bool(self._queue) and self._working < getattr(self._queue[0].job.source, "at_once", DECODING)

    # In threads

    def _work(self) -> None:
        while True:
            with self._turn:
                while not self._startable():
                    self._idle += 1
                    self._turn.wait()
                    self._idle -= 1
                run = heapq.heappop(self._queue)
                blocks = self._taken(run)
                self._working += 1
                self._wake()
            self._worked(run.job, blocks)
            with self._turn:
                self._working -= 1

    def _taken(self, run: _QueuedRun) -> list[int]:
        """Blocks of this run that are still to be made, this thread's from now on. Those behind one that was made
        alone are for another thread: one after the other they would take twice as long."""
        place, pending = run.job.file.place, self._pending
        left = [block for block in run.blocks if (place, block) in pending and not pending[place, block].running]
        blocks = next(in_runs(left, REQUEST), [])
        for block in blocks:
            pending[place, block].running = True
        if len(blocks) < len(left):
            heapq.heappush(self._queue, _QueuedRun(run.rank, run.job, left[len(blocks) :]))
        return blocks

    def _worked(self, job: BlockJob, blocks: list[int]) -> None:
        """These blocks, made by this process or another."""
        problem: BaseException | None = None
        left = blocks
        try:
            while left:
                others = self._made(job, left)
                self._done(job.file, [block for block in left if block not in others])
                left = [block for block in others if not job.file.is_there(block)]
                if left:
                    sleep(_LOOK_AGAIN)
        except BaseException as found:  # foreign code may raise anything
            problem = found
        self._done(job.file, blocks, problem)

    def _done(self, file: BlockFile, blocks: list[int], problem: BaseException | None = None) -> None:
        """Tell those that wait for these blocks. A question is answered once: by the first error, or the last block."""
        with self._turn:
            for block in blocks:
                pending = self._pending.pop((file.place, block), None)
                if pending is None:
                    continue
                failed = problem is not None and not file.is_there(block)
                for question in pending.questions:
                    question.left -= 1
                    if failed and question.left >= 0:
                        assert problem is not None
                        self._answer(question.number, {"error": described(problem)})
                        question.left = 0
                    elif question.left == 0:
                        self._answer(question.number, {})

    def _made(self, job: BlockJob, blocks: list[int]) -> list[int]:
        """Make these blocks; those that were not, because another process is making them."""
        file, locked = job.file, []
        first = self._for_first(job, blocks)
        try:
            for run in in_runs(blocks, REQUEST):
                locked += file.locked(run[0], len(run))
            unmade = self._unmade(job, locked, first)
            # What is there stays locked by nobody who waits for room: it may be what has to go.
            for run in in_runs(list(set(locked).difference(unmade)), REQUEST):
                file.unlock(run[0], len(run))
            for run in in_runs(unmade, REQUEST):
                self._made_here(job, run, first)
                file.unlock(run[0], len(run))
        except CutByHandError:
            make_files(file.place, file.size, harmed=True)
            return blocks
        finally:
            for run in in_runs(locked, REQUEST):
                file.unlock(run[0], len(run))
        return [block for block in blocks if block not in locked]

    def _unmade(self, job: BlockJob, blocks: list[int], first: bool) -> list[int]:
        """Those that are not there, and whose bytes are no longer whole where an earlier boot wrote them."""
        found = []
        for run in in_runs(blocks, REQUEST):
            marks = job.file.read_marks(run[0], len(run))
            checksums = job.file.hints_of(CHECKSUM, run[0], len(run))
            for block, mark, checksum in zip(run, marks, checksums, strict=True):
                if mark % 2 == 0 and not (checksum and self._kept(job, block, first)):
                    found.append(block)
        return found

    def _kept(self, job: BlockJob, block: int, first: bool) -> bool:
        """A block of an earlier boot whose bytes are still whole."""
        self._room(job, 1, first)
        whole = job.file.still_whole(block)
        job.disk.settle(1, int(whole))
        return whole

    def _made_here(self, job: BlockJob, run: list[int], first: bool) -> None:
        self._room(job, len(run), first)
        writing = Writing(job.file, run)
        try:
            offset = run[0] * BLOCK
            length = min(job.file.size, (run[-1] + 1) * BLOCK) - offset
            job.source.make(offset, length, writing.write)
        finally:
            punch(job.file, [block for block in run if block not in writing.marked])
            job.disk.settle(len(run), len(writing.marked))

    def _for_first(self, job: BlockJob, blocks: list[int]) -> bool:
        """Whether the first in line waits for any of them."""
        pending = [self._pending.get((job.file.place, block)) for block in blocks]
        return any(one is not None and one.first for one in pending)

    def _room(self, job: BlockJob, blocks: int, first: bool) -> None:
        """For the first in line room comes: from blocks of all others, and from what they are making when it is made.
        The others wait for none, because they might wait for each other for ever: their readers get in line."""
        began = monotonic()
        while True:
            try:
                job.disk.reserve(blocks, job.stated, None if first else self._claimed)
            except CrowdedError as problem:
                if not first:
                    raise
                if problem.making:
                    began = monotonic()
                elif monotonic() > began + _ROOM_COMES or job.disk.limit(job.stated) < LEAST:
                    path, wanted, number = problem.path, problem.wanted, problem.errno
                    raise WriteError(str(problem), path=path, wanted=wanted, free=None, errno=number) from None
                sleep(0.01)
            else:
                return


def described(problem: BaseException) -> dict[str, Any]:
    """An error as the reader raises it again."""
    kind = next((one.__name__ for one in type(problem).__mro__ if one.__name__ in KINDS), "ReadError")
    told = {name: getattr(problem, name, None) for name in ("path", "offset", "errno", "wanted", "free")}
    return {"kind": kind, "message": str(problem), **{key: value for key, value in told.items() if value is not None}}


def _built(function: str, arguments: dict[str, Any], environment: dict[str, str]) -> Any:
    _take_on(environment)
    return pkgutil.resolve_name(function)(**arguments)


def _take_on(environment: dict[str, str]) -> None:
    """The variables of the process that opened, as they were then: clients of stores look for credentials there."""
    for name in [one for one in os.environ if one.startswith(VARIABLES) and one not in environment]:
        del os.environ[name]
    os.environ.update(environment)


if __name__ == "__main__":
    main()
