"""Objects of S3, GCS, Azure and web servers, fetched by range: what a maker does for an address.

obstore does the requests, and is imported only in the maker: it must not meet a fork. Every answer is compared with
what was pinned when the object was opened - ETag (or the time of its last change where a server has none) and size -
so two versions of an object are never mixed. Failures that may pass - busy servers, cut bodies, time-outs, wrong
ranges - are tried again with longer and longer pauses; others are reported at once, in our own words, because a
server's message may repeat an address with its secret.

Calls block the thread that makes them: obstore then works in that thread, where its event loop would wake another one
for every answer (2,700 MiB/s against 2,000 behind nginx on two cores, without latency). Many threads may wait for an
answer to begin, which costs nothing; only ``BODIES`` of them receive one at a time, the oldest first, so that what is
held stays small however far away the store is. Long bodies are written as they come, in pieces of about 512 KiB.
"""

from __future__ import annotations

import base64
import contextlib
import heapq
import itertools
import json
import os
import random
import re
import threading
from collections.abc import Callable, Iterator
from datetime import datetime
from functools import partial
from time import monotonic, sleep
from typing import Any
from urllib.parse import unquote

from lowtide.blocks.addresses import shown, split_address
from lowtide.errors import FormatError, ReadError, WriteError

PIECE = 512 * 1024
WHOLE = 5 * 256 * 1024  # bytes taken in one piece, a block of a local shuffle: every piece crosses threads
BODIES = 6  # received at a time
PATIENCE = 180.0  # seconds for which a request is tried again
# The same where the host's name is not known, and where nobody can say: no name server answers, the name was known
# before, or nothing takes a connection at a store that has not answered yet.
UNKNOWN, UNSURE = 3.0, 20.0
_PAUSES = (0.1, 20.0)  # the first and the longest
_EXPLAINED = re.compile(r"\s*\n|\. ?Debug")  # what obstore says for its own programmers begins there
_LOOKED_UP = re.compile(r"dns error.*?lookup address information: ([^\"]*)", re.DOTALL)
_UNCONNECTED = re.compile(r"kind: Connect,|ConnectionRefused")
_HOST = re.compile(r"https?://(?:[^/?#\s]*@)?([^/?#\s]+)")
_STATUS = re.compile(r"status code: (\d{3})")
_LOOKED_FOR = {
    "s3": "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_PROFILE's role or the machine's own",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS, GOOGLE_SERVICE_ACCOUNT or the machine's own",
    "az": "AZURE_STORAGE_ACCOUNT_NAME with AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_TOKEN, or the machine's own",
    "http": "those in the address itself, its query or remote={'client_options': {'default_headers': ...}}",
}
Write = Callable[[int, Any], None]
_ANSWERED: set[tuple[str, str]] = set()  # stores that ever gave this process an answer, whatever it said
_FIRST: dict[tuple[str, str], bytes] = {}  # first bytes of objects that were looked at, until their first block is made


class Places:
    """So many threads go on at a time; of those that wait, the one that began first is next."""

    def __init__(self, places: int) -> None:
        self._turn, self._free = threading.Lock(), places
        self._waiting: list[tuple[int, threading.Lock]] = []
        self._numbers = itertools.count()

    def number(self) -> int:
        """Of whoever begins now."""
        return next(self._numbers)

    @contextlib.contextmanager
    def one(self, number: int) -> Iterator[None]:
        with self._turn:
            waits = self._free == 0
            if waits:
                called = threading.Lock()
                called.acquire()
                heapq.heappush(self._waiting, (number, called))
            else:
                self._free -= 1
        if waits:
            called.acquire()  # the place is handed over: whoever comes meanwhile cannot take it
        try:
            yield
        finally:
            with self._turn:
                if self._waiting:
                    heapq.heappop(self._waiting)[1].release()
                else:
                    self._free += 1


_RECEIVING = Places(BODIES)


class RemoteObject:
    """One object: what it is, and bytes of it. ``options``: of ``remote=``, passed to obstore's store."""

    at_once = 48  # requests under way: those that wait for their answer cost little

    def __init__(self, address: str, options: dict[str, Any], pinned: dict[str, Any] | None = None) -> None:
        self.address, self.pinned = address, pinned
        self.patience = float(options.get("patience", PATIENCE))
        self.store, self.key = store_of(address, options)

    def look(self, length: int) -> dict[str, Any]:
        """What the object is, and its first bytes, kept for whoever makes the first block: one request."""

        def once() -> tuple[dict[str, Any], bytes]:
            try:
                result = self._get(0, length, None)
            except Exception as problem:
                said = _STATUS.search(str(problem))
                if said is not None and said[1] == "416":  # an empty object has no first byte
                    return _about(self._head()), b""
                raise
            about = _about(result.meta)
            first = bytes(result.bytes())
            expected = min(length, about["size"])
            if len(first) != expected:
                raise _PassingError(f"{len(first)} bytes of {expected}")
            return about, first

        about, first = self._patiently(once, 0)
        while len(_FIRST) >= 16:
            _FIRST.pop(next(iter(_FIRST)))
        _FIRST[self.address, json.dumps(about)] = first
        found: dict[str, Any] = about
        return found

    def size(self) -> int | None:
        """The object's size; None where there is no such object."""

        def once() -> int:
            return int((self._head())["size"])

        try:
            return int(self._patiently(once, 0))
        except FileNotFoundError:
            return None

    def below(self) -> list[tuple[str, int]]:
        """Keys that begin with this one, and their sizes."""
        import obstore

        def once() -> list[tuple[str, int]]:
            pages = obstore.list(self.store, prefix=self.key or None)
            return [(one["path"], int(one["size"])) for some in pages for one in some]

        found: list[tuple[str, int]] = self._patiently(once, 0)
        return found

    def make(self, offset: int, length: int, write: Write) -> None:
        """The bytes at ``offset``, given to ``write`` piece by piece; again from ``offset`` if one is cut short."""
        known = _FIRST.pop((self.address, json.dumps(self.pinned)), None) if offset == 0 else None
        if known is not None and len(known) == length:
            write(0, known)
            return

        number = _RECEIVING.number()

        def put(at: int, piece: Any) -> int:
            if at + len(piece) > offset + length:
                raise _PassingError(f"more than the {length} bytes asked for")
            write(at, piece)
            return len(piece)

        def once() -> None:
            result = self._get(offset, length, (self.pinned or {}).get("etag"))
            self._refuse_another(_about(result.meta), offset)
            at, end = result.range
            if (at, end) != (offset, offset + length):
                raise _PassingError(f"bytes {at} to {end} instead of {offset} to {offset + length}")
            with _RECEIVING.one(number):
                for piece in (result.bytes(),) if length <= WHOLE else result.stream(min_chunk_size=PIECE):
                    at += put(at, piece)
            if at != offset + length:
                raise _PassingError(f"{at - offset} bytes of {length}")

        self._patiently(once, offset)

    def _head(self) -> Any:
        import obstore

        return obstore.head(self.store, self.key)

    def _get(self, offset: int, length: int, etag: str | None) -> Any:
        import obstore

        options: Any = {"range": (offset, offset + length)}
        if etag is not None:
            options["if_match"] = etag
        return obstore.get(self.store, self.key, options=options)

    def _refuse_another(self, about: dict[str, Any], offset: int) -> None:
        for what in ("etag", "modified", "size"):
            wanted = (self.pinned or {}).get(what)
            if wanted is not None and about[what] != wanted and not (what == "modified" and self.pinned["etag"]):  # type: ignore[index]
                raise self._changed(f"{what} {wanted}", f"{what} {about[what]}", offset)

    def _changed(self, wanted: str, got: str, offset: int) -> ReadError:
        where = shown(self.address)
        return ReadError(
            f"{where}: expected the object that was opened ({wanted}), got another one ({got}). It was rewritten "
            "meanwhile: open it again.",
            path=where,
            offset=offset,
        )

    def _patiently(self, once: Callable[[], Any], offset: int) -> Any:
        began, pause, tries = monotonic(), _PAUSES[0], 0
        store = split_address(self.address)[:2]
        while True:
            tries += 1
            try:
                found = once()
            except (ReadError, WriteError, FormatError):
                raise
            except Exception as problem:
                said = str(problem)
                looked_up, unconnected = _LOOKED_UP.search(said), _UNCONNECTED.search(said)
                if not (looked_up or unconnected):
                    _ANSWERED.add(store)
                got, patience = self._final(problem, offset), self.patience
                known = self.pinned is not None or store in _ANSWERED
                if looked_up:
                    patience = min(patience, UNSURE if known or _passes(looked_up[1]) else UNKNOWN)
                elif unconnected and not known:
                    patience = min(patience, UNSURE)
                if monotonic() - began + pause > patience:
                    if looked_up:
                        raise self._nowhere(said, looked_up[1], offset) from None
                    raise self._unanswered(f"{got} at the last of {tries} tries", said, patience, offset) from None
            else:
                _ANSWERED.add(store)
                return found
            sleep(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, _PAUSES[1])

    def _unanswered(self, got: str, problem: str, patience: float, offset: int) -> ReadError:
        """The host as it was asked: of an address in a bucket that of the store or of an endpoint."""
        where, host = shown(self.address), _HOST.search(problem)
        whose = f" of {host[1]}" if host else ""
        return ReadError(
            f"{where}: expected an answer{whose} within {patience:.0f} s, got {got}. Check the network and the store, "
            "and try again.",
            path=where,
            offset=offset,
        )

    def _nowhere(self, problem: str, said: str, offset: int) -> ReadError:
        """The name of the host leads nowhere: the address's own, that of an endpoint, or of one that gives tokens."""
        where, host = shown(self.address), _HOST.search(problem)
        return ReadError(
            f"{where}: expected the network address of {host[1] if host else 'its host'}, got {said!r}. Check how the "
            "name is spelt, and the network.",
            path=where,
            offset=offset,
        )

    def _final(self, problem: Exception, offset: int) -> str:
        """What went wrong, where trying again may help; raised, where it will not."""
        where, name = shown(self.address), type(problem).__name__
        said = _STATUS.search(str(problem))
        status = int(said[1]) if said else 0
        scheme = split_address(self.address)[0].replace("https", "http")
        if isinstance(problem, FileNotFoundError) or status == 404:
            raise FileNotFoundError(f"{where}: expected an object, got none of that name. Check the address.") from None
        if status in (401, 403) or name in ("PermissionDeniedError", "UnauthenticatedError"):
            raise ReadError(
                f"{where}: expected permission to read it, got refused ({status or 'no permission'}). Credentials are "
                f"looked for in {_LOOKED_FOR[scheme]}, or remote={{...}}: check them, and that they may read this.",
                path=where,
                offset=offset,
                errno=13,
            ) from None
        if name == "PreconditionError" or status == 412:
            raise self._changed(f"etag {(self.pinned or {}).get('etag')}", "another etag", offset) from None
        if status == 416:
            size = (self.pinned or {}).get("size")
            raise self._changed(f"size {size}", f"one that ends before byte {offset}", offset) from None
        if name == "NotSupportedError":
            raise ReadError(
                f"{where}: expected a server that gives ranges of bytes, got one that gives whole objects only. Copy "
                "the object here first.",
                path=where,
                offset=offset,
            ) from None
        if 400 <= status < 500 and status not in (408, 425, 429):
            raise ReadError(
                f"{where}: expected the bytes at {offset}, got status {status}. Check the address and remote={{...}}.",
                path=where,
                offset=offset,
            ) from None
        if isinstance(problem, _PassingError):
            return str(problem)
        if status:
            return f"status {status}"
        if "ConnectionRefused" in str(problem):
            return "a refused connection"
        return "a wrong range" if "Requested" in str(problem) else "a failed or cut connection"


def _passes(said: str) -> bool:
    """Whether a lookup failed for want of an answer, in the words of glibc and of musl."""
    return said.startswith(("Temporary failure", "Try again"))


class _PassingError(Exception):
    """An answer that is not what was asked for: another try may bring it."""


def look(address: str, options: dict[str, Any], length: int) -> Callable[[], dict[str, Any]]:
    """Size, ETag and time of the last change of an object."""
    return partial(RemoteObject(address, options).look, length)


def size_of(address: str, options: dict[str, Any]) -> Callable[[], int | None]:
    """The object's size; None where there is none."""
    return RemoteObject(address, options).size


def listed(address: str, options: dict[str, Any]) -> Callable[[], list[tuple[str, int]]]:
    """Keys below an address that ends in a slash, and their sizes."""
    return RemoteObject(address, options).below


def _about(meta: Any) -> dict[str, Any]:
    modified = meta.get("last_modified")
    when = modified.isoformat() if isinstance(modified, datetime) else None
    return {"size": int(meta["size"]), "etag": meta.get("e_tag"), "modified": when}


def store_of(address: str, options: dict[str, Any]) -> tuple[Any, str]:
    """obstore's store for an address, and the object's path in it."""
    try:
        from obstore import store as stores
    except ImportError:
        where = shown(address)
        raise FormatError(
            f"{where}: expected obstore to reach object stores, got none installed. Install it: "
            "pip install 'lowtide[remote]'."
        ) from None
    given = {name: value for name, value in options.items() if name != "patience"}
    # Tried again by us: here the pauses are bounded, and what is final is reported at once.
    given.setdefault("retry_config", {"max_retries": 0})
    try:
        return _store(stores, address, given)
    except Exception as problem:  # of options and addresses that it does not understand obstore raises what it likes
        said = _EXPLAINED.split(str(problem), maxsplit=1)[0]
        where = re.sub("//.*@", "//", shown(address))  # a password that is not spelt as it must be may hold a slash
        raise ValueError(
            f"{where}: expected an address and remote={{...}} that obstore understands, got {said!r}. Check both."
        ) from None


def _store(stores: Any, address: str, given: dict[str, Any]) -> tuple[Any, str]:
    scheme, bucket, key = split_address(address)
    if scheme in ("http", "https"):
        client: Any = {
            "allow_http": True,
            "timeout": "120s",
            "connect_timeout": "10s",
            **given.pop("client_options", {}),
        }
        user, _, host = bucket.rpartition("@")
        if user and host:  # obstore sends none of it
            known = base64.b64encode(unquote(user).encode()).decode()
            client["default_headers"] = {"Authorization": f"Basic {known}", **client.get("default_headers", {})}
            address = f"{scheme}://{host}/{key}"
        return stores.HTTPStore.from_url(address, client_options=client, **given), ""
    client = {"timeout": "120s", "connect_timeout": "10s", **given.pop("client_options", {})}
    if _endpoint(scheme, given).startswith("http:"):  # whoever names such an endpoint means it
        client.setdefault("allow_http", True)
    if scheme == "s3":
        return stores.S3Store(bucket, client_options=client, **given), key
    if scheme == "gs":
        return stores.GCSStore(bucket, client_options=client, **given), key
    return stores.AzureStore(container_name=bucket, client_options=client, **given), key


def _endpoint(scheme: str, options: dict[str, Any]) -> str:
    names = {"s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")}.get(scheme, ("AZURE_ENDPOINT",))
    stated = options.get("endpoint") or options.get("aws_endpoint") or options.get("azure_endpoint")
    return str(stated or next((os.environ[name] for name in names if os.environ.get(name)), ""))
