"""Opened block files: from what an address or a decoder names to a local file whose blocks can be asked for.

    CACHE/blocks/KEY/...: one directory per object (block_file.py) | CACHE/blocks/ledger (disk.py)

KEY is a digest of what the bytes are made of - for an object its address without the query, ETag and size - so that a
rewritten object gets another file. The directory is made as ``storage/own_files.py`` says: what somebody else could
have put there is neither read nor written. On a network filesystem every boot of every machine has a directory of its
own, because marks are believed through the page cache of one machine.

Opening an object costs one request, which also brings its first block.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from lowtide.blocks.addresses import address_of, is_address, shown, split_address
from lowtide.blocks.asking import MAKER, Ticket, environment
from lowtide.blocks.block_file import BLOCK, BlockFile, boot_id, make_files
from lowtide.blocks.first_in_line import Line
from lowtide.blocks.messages import CrowdedError, in_runs
from lowtide.errors import WriteError
from lowtide.machine import file_kind
from lowtide.storage.own_files import OwnDirectory, seal, user_cache
from lowtide.units import MIB, format_size, parse_size

LEAST_DISK = 16 * MIB
_RUNS = 2000  # in one message
_AT_ONCE = 256  # blocks asked for together where all are wanted
_PATIENCE = 3.0  # seconds after which a terminal shows what is waited for


@dataclass(frozen=True)
class Reach:
    """How remote data is reached and where its blocks are kept, as the call that opens it states."""

    cache_dir: str | None = None
    disk: int | None = None
    options: str = field(default="{}", repr=False)  # of remote=, as JSON
    environment: str = field(default="{}", repr=False)


class _Reaching(threading.local):
    now: Reach | None = None


_REACHING = _Reaching()


@contextlib.contextmanager
def reaching(
    disk: int | str = "auto",
    cache_dir: str | os.PathLike[str] | None = None,
    remote: Any = None,
) -> Iterator[None]:
    """Inside the ``with`` block, addresses are opened this way."""
    stated = None if disk == "auto" else parse_size(disk, what="disk")
    if stated is not None and stated < LEAST_DISK:
        raise ValueError(
            f"disk: expected {format_size(LEAST_DISK)} or more, got {format_size(stated)}. "
            f"Use disk={format_size(LEAST_DISK).replace(' ', '').replace('.0', '')!r}."
        )
    if remote is not None and not isinstance(remote, dict):
        got = type(remote).__name__
        raise TypeError(f"remote: expected a dict of options, got {got}. Use remote={{'region': 'eu-west-1'}}.")
    try:
        options = json.dumps(remote or {})
    except TypeError as problem:
        raise TypeError(f"remote: expected plain values, got {problem}. Use text, numbers and dicts.") from None
    if cache_dir is not None and not os.fspath(cache_dir):
        raise ValueError(
            "cache_dir: expected a directory to keep blocks in, got empty text. "
            "Leave cache_dir= out for ~/.cache/lowtide."
        )
    place = None if cache_dir is None else str(Path(cache_dir).absolute())
    before, _REACHING.now = _REACHING.now, Reach(place, stated, options, json.dumps(environment()))
    try:
        yield
    finally:
        _REACHING.now = before


def reach() -> Reach:
    return _REACHING.now or Reach(environment=json.dumps(environment()))


@dataclass(frozen=True)
class Made:
    """What the bytes of a file are made of, by whom, and where its blocks go."""

    name: str  # for people: an address without secrets, or a path
    key: str
    size: int
    source: str = field(repr=False)  # JSON: a function of the maker's, and its arguments
    reach: Reach = field(repr=False)

    def __reduce__(self) -> tuple[Any, ...]:
        # Another process has credentials of its own in its environment; what the caller stated goes along.
        return _remade, (self.name, self.key, self.size, self.source, replace(self.reach, environment="{}"))


def _remade(name: str, key: str, size: int, source: str, reached: Reach) -> Made:
    return Made(name, key, size, source, replace(reached, environment=json.dumps(environment())))


_USERS: dict[tuple[str, str], str] = {}  # by scheme and host: names of files beside one that was opened have none


def _with_user(address: str) -> str:
    """The address of a web server with the name and password that were last stated for that host."""
    scheme, host, key = split_address(address)
    if not scheme.startswith("http"):
        return address
    user, _, bare = host.rpartition("@")
    if user:
        _USERS[scheme, bare] = user
    known = _USERS.get((scheme, bare))
    return address if known is None else f"{scheme}://{known}@{bare}/{key}"


def open_object(address: str) -> Made:
    """The object behind an address, pinned as it is now; FileNotFoundError where there is none."""
    reached = reach()
    name, address = shown(address), _with_user(address)
    arguments = {"address": address, "options": json.loads(reached.options), "length": BLOCK}
    about = MAKER.call("lowtide.blocks.remote:look", arguments, _telling(name, 0))
    pinned = [name, about["etag"] or about["modified"], about["size"], _endpoint(arguments["options"])]
    source = {
        "function": "lowtide.blocks.remote:RemoteObject",
        "arguments": {"address": address, "options": arguments["options"], "pinned": about},
    }
    return Made(name, seal("object", pinned), about["size"], json.dumps(source), reached)


def object_size(address: str) -> int | None:
    """The size of the object at an address; None where there is none."""
    arguments = {"address": _with_user(address), "options": json.loads(reach().options)}
    found: int | None = MAKER.call("lowtide.blocks.remote:size_of", arguments, _telling(shown(address), 0))
    return found


def listed(address: str) -> list[tuple[str, int]]:
    """Addresses of all objects whose address begins so, and their sizes."""
    found = MAKER.call(
        "lowtide.blocks.remote:listed",
        {"address": address, "options": json.loads(reach().options)},
        _telling(shown(address), 0),
    )
    scheme, bucket, _ = split_address(address)
    return [(f"{scheme}://{bucket}/{key}", size) for key, size in found]


def normal_address(text: object) -> str | None:
    """``text`` as an address; None where it is none. What pathlib made of one may be the name of a file here."""
    if not isinstance(text, str) or not is_address(text) or ("://" not in text and os.path.lexists(text)):
        return None
    return address_of(text)


def fetched(made: Made) -> str:
    """The path of the local file, with every block of it made."""
    file = MadeFile(made)
    if made.reach.disk is not None and made.size > made.reach.disk:
        raise ValueError(
            f"{made.name}: expected disk={made.size} or more to have it all here, got {made.reach.disk}. Raise disk=."
        )
    for first in range(0, file.file.count, _AT_ONCE):
        with Line() as line:
            file.have(list(range(first, min(first + _AT_ONCE, file.file.count))), line)
    return f"{file.place}/data"


class MadeFile:
    """An open block file and the asking for its blocks."""

    def __init__(self, made: Made) -> None:
        self.made = made
        self.renew()

    def renew(self) -> None:
        """Open it; make it again if somebody removed it."""
        root = _root(self.made.reach.cache_dir)
        try:
            place = OwnDirectory(root.path / self.made.key)
            make_files(str(place.path), self.made.size)
            self.root, self.place = str(root.path), str(place.path)
            self.file = BlockFile(self.place, self.made.size)
            self.file.settle()
        except OSError as problem:
            raise WriteError(
                f"{root.path}: expected room for the blocks of {self.made.name} ({format_size(self.made.size)}), got "
                f"{problem.strerror or problem}. State cache_dir= on another disk, or make room there.",
                path=str(root.path),
                wanted=self.made.size,
                free=None,
                errno=problem.errno,
            ) from problem
        with contextlib.suppress(OSError), place.open("about.json", os.O_WRONLY | os.O_CREAT) as file:
            os.pwrite(file.number, json.dumps({"made of": self.made.name, "bytes": self.made.size}).encode(), 0)

    def ask(self, blocks: list[int], *, urgent: bool, claim: bool = False, first: bool = False) -> list[Ticket]:
        """Have these made, ``urgent`` ones first; answers may be waited for. ``claim``: they stay until ``done``.
        ``first``: for the first in line, for whom all others make room."""
        message = {
            "do": "make",
            "where": self.made.name,
            "place": self.place,
            "root": self.root,
            "size": self.made.size,
            "disk": self.made.reach.disk,
            "source": json.loads(self.made.source),
            "environment": json.loads(self.made.reach.environment),
            "urgent": urgent,
            "claim": claim,
            "first": first,
        }
        runs = [(run[0], len(run)) for run in in_runs(blocks, 1 << 30)]
        return [MAKER.ask({**message, "runs": runs[at : at + _RUNS]}) for at in range(0, len(runs), _RUNS)]

    def wait(self, tickets: list[Ticket], blocks: int) -> None:
        waiting = _telling(self.made.name, blocks * BLOCK)
        for ticket in tickets:
            # Asked before a fork, or no room: whoever looks again asks again.
            with contextlib.suppress(InterruptedError, CrowdedError):
                MAKER.wait(ticket, waiting)

    def read(self, offset: int, length: int) -> bytes:
        """Bytes of the file, made first where they are missing; for headers."""
        blocks = list(range(offset // BLOCK, -(-(offset + length) // BLOCK)))
        with Line() as line:
            while True:
                self.have(blocks, line)
                before = [self.file.mark_of(block) for block in blocks]
                if any(mark % 2 == 0 for mark in before):
                    continue
                found = self.file.read(offset, length)
                if [self.file.mark_of(block) for block in blocks] == before:
                    return found

    def have(self, blocks: list[int], line: Line) -> None:
        """Wait until these were all there at a moment; they stay if we had to get in line for them."""
        asked = False
        while missing := [block for block in blocks if not self.file.is_there(block)]:
            if not self.file.alive:
                self.renew()
            if asked:
                line.wait([self.root])
                line.keep([(self.place, blocks)])
            self.wait(self.ask(missing, urgent=True, first=line.first), len(missing))
            asked = True


def _telling(name: str, size: int) -> Any:
    """Says on a terminal what is waited for, once that takes long."""
    told = False

    def waiting(seconds: float) -> None:
        nonlocal told
        if not told and seconds > _PATIENCE and sys.stderr is not None and sys.stderr.isatty():
            told = True
            what = f"{format_size(size)} of {name}" if size else name
            print(f"lowtide: waiting for {what}", file=sys.stderr, flush=True)

    return waiting


def _endpoint(options: dict[str, Any]) -> str:
    """Two stores may have buckets of one name."""
    return str(options.get("endpoint") or os.environ.get("AWS_ENDPOINT_URL") or os.environ.get("AWS_ENDPOINT") or "")


def own_place(key: str) -> tuple[str, str]:
    """The directory of block files, and in it that of ``key``, made where there is none: for what is kept beside."""
    root = _root(reach().cache_dir)
    return str(root.path), str(OwnDirectory(root.path / key).path)


def _root(stated: str | None) -> OwnDirectory:
    """The directory of block files: ours alone, else one with our name on it, else the user's own cache."""
    parent = user_cache() if stated is None else Path(stated)
    name = "blocks"
    existing = next((one for one in (parent, *parent.parents) if os.path.exists(one)), parent)  # noqa: PTH110 - any name
    if file_kind(str(existing)).network:
        name = f"blocks-{boot_id()[:8]}"
    problem: OSError | None = None
    for place in (parent / name, parent / f"{name}-{os.geteuid()}"):
        try:
            return OwnDirectory(place)
        except OSError as found:
            problem = problem or found
    assert problem is not None
    told = type(problem)(
        f"{parent}: expected a directory to keep blocks in, got {problem.strerror or problem}. State cache_dir= with a "
        "directory that you may write to."
    )
    told.errno = problem.errno
    raise told from problem
