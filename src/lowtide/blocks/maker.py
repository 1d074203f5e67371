"""The process that makes blocks: one beside each reading process, started by its first missing block, gone with it.

Foreign code - obstore's threads, decoders of formats - runs here, so a fork of the reading process at any moment stays
safe, and hostile bytes cannot end the program. Messages are JSON, one per packet of a socket: ``call`` runs a function
named by module and makes its result the answer; ``make`` has blocks of a file made by a source named the same way, so
this room knows no formats. Blocks somebody waits for come before those that are only wanted soon; missing neighbours
are one request of up to 8 MiB; a lock on a block's mark decides which process makes it, and the others look now and
then whether it is there.

Blocks are made in threads: bytes are checked, written and marked by the one that received or decoded them, and nothing
waits for the loop. What they hold is bounded by the sources: six bodies of 1.25 MiB, or what so many decoders need.
Ends when its socket closes, or its parent is gone.
"""

from __future__ import annotations

import asyncio
import heapq
import inspect
import itertools
import json
import os
import pkgutil
import signal
import socket
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic, sleep
from typing import Any

from lowtide.blocks.block_file import BLOCK, CHECKSUM, BlockFile, fast_checksum, make_files
from lowtide.blocks.disk import LEAST, Disk, now, punch
from lowtide.blocks.messages import KINDS, PACKET, VARIABLES, in_runs
from lowtide.errors import WriteError

THREADS = 48
DECODING = (os.cpu_count() or 1) + 4  # runs that are decoded at a time
REQUEST = 8 * 1024 * 1024 // BLOCK  # blocks of one request, at most
_CHECKSUM_OF = fast_checksum()
_LOOK_AGAIN = 0.005  # seconds between looks whether another process has made a block
_ROOM_COMES = 20.0  # seconds to wait for others to be done with their blocks


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the reader, which ends us
    with socket.socket(fileno=int(sys.argv[1])) as end:
        asyncio.run(Maker(end).serve())


@dataclass
class _Pending:
    """A block that is to be made."""

    made: asyncio.Future[None]
    urgent: bool
    running: bool = False


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
        self._pending: dict[tuple[str, int], _Pending] = {}
        self._claimed: Counter[tuple[str, int]] = Counter()
        self._claims: dict[int, list[tuple[str, int]]] = {}  # by the question that made them
        self._queue: list[_QueuedRun] = []
        self._numbers = itertools.count()
        self._tasks: set[asyncio.Task[None]] = set()
        self._working = 0
        self._threads = ThreadPoolExecutor(THREADS)
        self._answers: asyncio.Queue[bytes] = asyncio.Queue()

    async def serve(self) -> None:
        self._end.setblocking(False)
        loop = asyncio.get_running_loop()
        loop.add_reader(self._end, self._receive)
        self._start(self._send())
        while os.getppid() == self._parent:
            await asyncio.sleep(1)
            for (place, block), count in list(self._claimed.items()):
                if count > 0 and place in self._files:
                    self._files[place].needed(block, 1, now())
        os._exit(0)

    # Messages

    def _receive(self) -> None:
        while True:
            try:
                packet = self._end.recv(2 * PACKET)
            except BlockingIOError:
                return
            except OSError:
                packet = b""
            if not packet:
                os._exit(0)  # the reader is gone: whatever is under way is nobody's
            self._start(self._answer(json.loads(packet)))

    async def _send(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            packet = await self._answers.get()
            with suppress(OSError):
                await loop.sock_sendall(self._end, packet)

    async def _answer(self, message: dict[str, Any]) -> None:
        try:
            result = None
            if message["do"] == "done":
                self._let_go(message["ids"])
                return
            if message["do"] == "call":
                result = await _called(message["function"], message["arguments"], message["environment"])
            else:
                await self._make(message)
            answer = {"id": message["id"], "result": result}
        except Exception as problem:
            answer = {"id": message["id"], "error": described(problem)}
        text = json.dumps(answer).encode()
        parts = [text[at : at + PACKET] for at in range(0, len(text), PACKET)]
        for number, part in enumerate(parts):
            head = f"{message['id']} {int(number == len(parts) - 1)} ".encode()
            self._answers.put_nowait(head + part)

    def _start(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # Blocks

    async def _make(self, message: dict[str, Any]) -> None:
        job = self._job(message)
        place, urgent = job.file.place, bool(message["urgent"])
        blocks = [block for first, count in message["runs"] for block in range(first, first + count)]
        if message["claim"]:  # until the reader says that it has read them
            self._claims[message["id"]] = [(place, block) for block in blocks]
            self._claimed.update(self._claims[message["id"]])
        missing: list[int] = []
        for first, count in message["runs"]:
            job.file.needed(first, count, now())
            marks = job.file.read_marks(first, count)
            missing += [first + number for number, mark in enumerate(marks) if mark % 2 == 0]
        wanted, waited = [], []
        for block in missing:
            pending = self._pending.get((place, block))
            if pending is None:
                pending = _Pending(asyncio.get_running_loop().create_future(), urgent)
                pending.made.add_done_callback(_looked_at)
                self._pending[place, block] = pending
                wanted.append(block)
            elif urgent and not pending.urgent and not pending.running:
                pending.urgent = True
                wanted.append(block)
            waited.append(pending.made)
        most = REQUEST if job.stated is None else max(1, min(REQUEST, job.stated // BLOCK // 8))
        for run in in_runs(wanted + self._beside(job, wanted, most), most):
            heapq.heappush(self._queue, _QueuedRun((not urgent, next(self._numbers)), job, run))
        self._work()
        if waited:
            await asyncio.wait(set(waited), return_when=asyncio.FIRST_EXCEPTION)
        for made in waited:
            if made.done():
                made.result()

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
            inside = range(-(-first // BLOCK), last // BLOCK if last < job.file.size else job.file.count)
            found.update(block for block in inside[: 4 * most] if not job.file.is_there(block))
        beside = [block for block in found - set(wanted) if (job.file.place, block) not in self._pending]
        for block in beside:
            pending = _Pending(asyncio.get_running_loop().create_future(), False)
            pending.made.add_done_callback(_looked_at)
            self._pending[job.file.place, block] = pending
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

    def _work(self) -> None:
        while self._queue and self._working < getattr(self._queue[0].job.source, "at_once", DECODING):
            run = heapq.heappop(self._queue)
            blocks = []
            for block in run.blocks:
                pending = self._pending.get((run.job.file.place, block))
                if pending is not None and not pending.running:
                    pending.running = True
                    blocks.append(block)
            if blocks:
                self._working += 1
                self._start(self._worked(run.job, blocks))

    async def _worked(self, job: BlockJob, blocks: list[int]) -> None:
        """These blocks, made by this process or another."""
        problem: BaseException | None = None
        left, loop = blocks, asyncio.get_running_loop()
        try:
            while left:
                others = await loop.run_in_executor(self._threads, self._made, job, left)
                for block in set(left).difference(others):
                    self._done(job.file, block)
                left = [block for block in others if not job.file.is_there(block)]
                if left:
                    await asyncio.sleep(_LOOK_AGAIN)
        except Exception as found:
            problem = found
        finally:
            self._working -= 1
            for block in blocks:
                self._done(job.file, block, problem)
            self._work()

    def _done(self, file: BlockFile, block: int, problem: BaseException | None = None) -> None:
        pending = self._pending.pop((file.place, block), None)
        if pending is not None and not pending.made.done():
            if problem is None or file.is_there(block):
                pending.made.set_result(None)
            else:
                pending.made.set_exception(problem)

    # In threads

    def _made(self, job: BlockJob, blocks: list[int]) -> list[int]:
        """Make these blocks; those that were not, because another process is making them."""
        file, locked = job.file, []
        try:
            for run in in_runs(blocks, REQUEST):
                locked += run if file.lock(run[0], len(run)) else [one for one in run if file.lock(one)]
            for run in in_runs(self._unmade(job, locked), REQUEST):
                self._made_here(job, run)
        except _CutByHandError:
            make_files(file.place, file.size, harmed=True)
            return blocks
        finally:
            for run in in_runs(locked, REQUEST):
                file.unlock(run[0], len(run))
        return [block for block in blocks if block not in locked]

    def _unmade(self, job: BlockJob, blocks: list[int]) -> list[int]:
        """Those that are not there, and whose bytes are no longer whole where an earlier boot wrote them."""
        found = []
        for run in in_runs(blocks, REQUEST):
            marks = job.file.read_marks(run[0], len(run))
            checksums = job.file.hints_of(CHECKSUM, run[0], len(run))
            for block, mark, checksum in zip(run, marks, checksums, strict=True):
                if mark % 2 == 0 and not (checksum and self._kept(job, block)):
                    found.append(block)
        return found

    def _kept(self, job: BlockJob, block: int) -> bool:
        """A block of an earlier boot whose bytes are still whole."""
        job.disk.reserve(1, job.stated, self._claimed)
        whole = job.file.still_whole(block)
        job.disk.settle(1, int(whole))
        return whole

    def _made_here(self, job: BlockJob, run: list[int]) -> None:
        self._room(job, len(run))
        writing = Writing(job.file, run)
        try:
            offset = run[0] * BLOCK
            length = min(job.file.size, (run[-1] + 1) * BLOCK) - offset
            job.source.make(offset, length, writing.write)
        finally:
            job.disk.settle(len(run), len(writing.marked))
            for block in run:
                if block not in writing.marked:
                    punch(job.file, block)

    def _room(self, job: BlockJob, blocks: int) -> None:
        began = monotonic()
        while True:
            # Readers whose blocks do not fit the disk together would wait for each other for ever: then some of what
            # they wait for is taken away all the same, and they ask for it again.
            claimed = self._claimed if monotonic() < began + _ROOM_COMES / 10 else ()
            try:
                job.disk.reserve(blocks, job.stated, claimed)
            except WriteError:
                if monotonic() > began + _ROOM_COMES or job.disk.limit(job.stated) < LEAST:
                    raise
                sleep(0.01)
            else:
                return


class Writing:
    """Bytes that come in order into neighbouring blocks, each marked when its last byte is written."""

    def __init__(self, file: BlockFile, run: list[int]) -> None:
        self._file, self._first, self._checksum = file, run[0], 0
        self._before = file.read_marks(run[0], len(run))
        self.marked: set[int] = set()

    def write(self, offset: int, data: Any) -> None:
        view = memoryview(data).cast("B")
        if offset + len(view) > self._file.size:
            raise ValueError(f"bytes at {offset}, behind the end of the file")
        if offset == self._first * BLOCK:
            self._checksum = 0  # from the beginning, perhaps once more
        first, whole = offset // BLOCK, []
        while view:
            block = offset // BLOCK
            part = view[: block * BLOCK + self._file.length_of(block) - offset]
            self._checksum = _CHECKSUM_OF(part, self._checksum)
            self._put(offset, part)  # while it is in the processor's cache
            offset, view = offset + len(part), view[len(part) :]
            if offset == block * BLOCK + self._file.length_of(block):
                whole.append(self._checksum or 1)
                self._checksum = 0
        if whole:
            before = self._before[first - self._first :]
            marks = self._file.read_marks(first, len(whole))
            if any(mark - was not in (0, 1) for mark, was in zip(marks, before, strict=False)):
                raise self._cut()  # and made again by somebody who noticed: part of these bytes may be gone
            self._file.mark(first, whole)
            self.marked.update(range(first, first + len(whole)))

    def _put(self, offset: int, part: memoryview) -> None:
        try:
            whole = self._file.has_its_length
            self._file.write(offset, part)
            whole = whole and self._file.has_its_length  # before too: what is written at the end makes it longer
        except OSError as problem:
            raise WriteError(
                f"{self._file.place}: expected to write {len(part)} bytes of a block, got {problem.strerror}. "
                "State cache_dir= on another disk, or make room there.",
                path=self._file.place,
                wanted=len(part),
                free=None,
                errno=problem.errno,
            ) from None
        if not whole:
            raise self._cut()

    def _cut(self) -> _CutByHandError:
        where = self._file.place
        return _CutByHandError(f"{where}: cut by hand", path=where, wanted=None, free=None, errno=None)


class _CutByHandError(WriteError):
    """Somebody made the file of the data shorter: what was there before is gone too."""


def described(problem: Exception) -> dict[str, Any]:
    """An error as the reader raises it again."""
    kind = next((one.__name__ for one in type(problem).__mro__ if one.__name__ in KINDS), "ReadError")
    told = {name: getattr(problem, name, None) for name in ("path", "offset", "errno", "wanted", "free")}
    return {"kind": kind, "message": str(problem), **{key: value for key, value in told.items() if value is not None}}


def _looked_at(made: asyncio.Future[None]) -> None:
    if not made.cancelled():
        made.exception()  # nobody may have waited for a block that was only wanted soon


async def _called(function: str, arguments: dict[str, Any], environment: dict[str, str]) -> Any:
    found = pkgutil.resolve_name(function)
    if inspect.iscoroutinefunction(found):
        _take_on(environment)
        return await found(**arguments)
    return await asyncio.to_thread(found, **arguments)


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
