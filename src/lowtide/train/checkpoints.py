"""The checkpoints of an out directory, and the lock that keeps it to one run.

A checkpoint is everything a run needs to go on exactly: numbers and text, never code. It is written under a temporary
name, synced and renamed, so a kill or a full disk leaves what was there before. A run that goes on from the newest
checkpoint of a branch extends it; one that goes on from anywhere else starts a branch of its own,
``step-00000038-2.pt`` beside ``step-00000040.pt``: no save can replace another run's, and pruning looks at its own
branch alone. The lock is a POSIX record lock on ``.lock``, which the kernel drops however a run ends. Cost: 12 bytes of
disk per parameter.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import os
import pickle
import pickletools
import re
import shlex
import socket
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, BinaryIO, NotRequired, TypedDict, cast

import torch
from torch import Tensor

from lowtide.errors import LowtideError, StateError
from lowtide.machine import available_memory
from lowtide.storage.own_files import atomic_write, open_own
from lowtide.train.settings import MODEL_FIELDS

CHECKPOINT_NAME = re.compile(r"step-(\d{8,})(?:-(\d+))?\.pt")
LATEST, BEST = "latest.pt", "best.pt"
CHECKPOINT_FORMAT = 1
_LOCK = ".lock"
_MOST_PICKLE = 64 * 1024**2  # bytes of everything but tensors; a run of years has under 1 MiB
_NAMES_USED = re.compile(r"collections OrderedDict|torch._utils _rebuild_tensor_v2|torch \w+Storage")
_locked: set[Path] = set()  # a record lock does not keep its own process out


class Past(TypedDict):
    """What the run that wrote a checkpoint knew of itself."""

    partial_loss: tuple[float, int]
    val_loss: float
    val_step: int
    best: NotRequired[float]  # the lowest val loss of a saved checkpoint
    seconds: float
    points: list[list[float]]
    file: NotRequired[str]
    lineage: NotRequired[list[str]]


class Contents(TypedDict):
    """What a checkpoint holds. The states are those of torch and of the feed."""

    format: NotRequired[int]
    step: int
    rows: int
    settings: dict[str, Any]
    shape: dict[str, int]
    model: dict[str, Tensor]
    optimizer: dict[str, Any]
    scaler: dict[str, Any]
    feed: dict[str, Any]
    run: Past


class DirectoryInUseError(LowtideError):
    """Another run is writing into the out directory."""


class SaveError(LowtideError, OSError):
    """A checkpoint or a ledger line could not be written; what was there before is still there."""

    def __init__(self, message: str, number: int | None = None) -> None:
        super().__init__(message)
        self.errno = number

    def __str__(self) -> str:
        return str(self.args[0])


def reason(problem: OSError) -> str:
    """What the system says, such as 'No space left on device'."""
    return repr(os.strerror(problem.errno) if problem.errno else str(problem))


# The file


def write_checkpoint(path: Path, contents: Contents, beside: Sequence[Path] = ()) -> None:
    """Write one checkpoint whole; if that fails, nothing is lost. ``beside``: the other checkpoints."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as file:
            writer = _Remembering(file)  # torch hides the disk's OSError behind a RuntimeError of its own
            try:
                torch.save({"format": CHECKPOINT_FORMAT, **contents}, cast(IO[bytes], writer))
            except RuntimeError as problem:
                raise writer.problem or problem from problem
    except OSError as problem:
        last, how = "no earlier one exists", ""
        if beside:
            last, how = f"the last good one is {beside[-1]}", " with --resume"
        raise SaveError(
            f"{path}: expected to save the checkpoint, got {reason(problem)}; {last}. "
            f"Free some space, or use another --out-dir, and start again{how}.",
            problem.errno,
        ) from problem


def load_whole(path: Path, *, whole: bool = True) -> Contents:
    """The contents of a whole checkpoint; StateError, with the one to use instead, for anything else."""
    try:
        return _read_checkpoint(path, whole=whole)
    except (FileNotFoundError, StateError) as problem:
        raise type(problem)(f"{problem}. {_instead(path)}") from problem


def glance(path: Path) -> Contents:
    """The same without reading its tensors, which are only mapped."""
    return load_whole(path, whole=False)


def _read_checkpoint(path: Path, *, whole: bool) -> Contents:
    """The contents; with ``whole`` every byte is read and checked, else tensors are only mapped."""
    if not path.is_file():
        what = "a directory" if path.is_dir() else "a link to nothing" if path.is_symlink() else "no such file"
        raise FileNotFoundError(f"{path}: expected a checkpoint, got {what}")
    size = path.stat().st_size
    with path.open("rb") as file:
        if file.read(2) not in (b"PK", b"P", b""):
            raise StateError(f"{path}: expected a checkpoint of `lowtide train`, got a file of another kind")
    try:
        _check_records(path, size, whole=whole)
        contents = torch.load(path, map_location="cpu", weights_only=True, mmap=not whole)
    except (zipfile.BadZipFile, pickle.UnpicklingError, EOFError, RuntimeError, ValueError) as problem:
        fault = (str(problem).splitlines() or [""])[0].rstrip(".") or type(problem).__name__
        raise StateError(f"{path}: expected a whole checkpoint, got {size:,} bytes with {fault!r}") from problem
    if not _is_ours(contents):
        raise StateError(f"{path}: expected a checkpoint of `lowtide train`, got other contents")
    _check_model(path, size, contents)
    return cast(Contents, contents)


def _check_records(path: Path, size: int, *, whole: bool) -> None:
    """The sizes a file declares are compared with its own size and this machine's memory before anything is unpacked. A
    torch file is a zip of records that are not compressed, each with a CRC; its directory comes last, so a file cut
    short has none."""
    with zipfile.ZipFile(path) as records:
        declared = sum(record.file_size for record in records.infolist())
        if declared > size or any(record.compress_type != zipfile.ZIP_STORED for record in records.infolist()):
            raise zipfile.BadZipFile(f"records of {declared:,} bytes packed into it, which torch does not do")
        if whole and declared > available_memory():
            raise zipfile.BadZipFile(f"{declared:,} bytes to load and {available_memory():,} bytes of memory available")
        for record in records.infolist():
            if record.filename.endswith("/data.pkl"):
                _check_names(records, record)
        damaged = records.testzip() if whole else None
    if damaged is not None:
        raise zipfile.BadZipFile(f"a wrong checksum in {damaged}")


def _check_names(records: zipfile.ZipFile, record: zipfile.ZipInfo) -> None:
    """Refuse what a pickle may call in torch's eyes and not in ours: ``bytearray(10**11)`` needs 20 bytes of file."""
    if record.file_size > _MOST_PICKLE:
        raise zipfile.BadZipFile(f"{record.file_size:,} bytes of text and numbers, at most {_MOST_PICKLE:,} expected")
    for operation, argument, _ in pickletools.genops(records.read(record)):
        if operation.name == "STACK_GLOBAL" or (
            operation.name == "GLOBAL" and not _NAMES_USED.fullmatch(str(argument))
        ):
            raise zipfile.BadZipFile(f"{argument or 'a name'} where numbers, text and tensors were expected")


def _is_ours(contents: Any) -> bool:
    if not isinstance(contents, dict) or set(contents) != Contents.__annotations__.keys():
        return False
    tables = all(isinstance(contents[name], dict) for name in ("settings", "shape", "model", "run"))
    numbers = all(type(contents[name]) is int and contents[name] >= 0 for name in ("format", "step", "rows"))
    return tables and numbers and contents["format"] == CHECKPOINT_FORMAT


def _check_model(path: Path, size: int, contents: Mapping[str, Any]) -> None:
    """The sizes that a model will be built with are those of the weights in the file."""
    shape, settings = contents["shape"], contents["settings"]
    sizes = [shape.get(name) for name in MODEL_FIELDS]
    if not all(type(one) is int and one > 0 for one in sizes):
        raise StateError(f"{path}: expected the sizes of a model, got {sizes}")
    differing = [name for name in MODEL_FIELDS[1:] if settings.get(name) != shape[name]]
    if differing:
        raise StateError(f"{path}: expected settings of the model it holds, got another {differing[0]}")
    vocab, block, layers, heads, width = sizes
    weights = 4 * (vocab * width + 12 * layers * width**2)
    positions = 4 * block * width // heads
    if weights > size or positions > available_memory():
        raise StateError(
            f"{path}: expected weights of {weights:,} bytes as its sizes say, got a file of {size:,} bytes"
        )


def _instead(path: Path) -> str:
    """Names another checkpoint, or says that there is none. It is the last one written before this one, so that
    following the advice from one damaged file to the next leads back to the first. It is not read, and may be damaged
    too."""
    beside = sorted(saved(path) or saved(path.parent), key=_written, reverse=True)
    others = [other for other in beside if other.is_file() and not (path.exists() and other.samefile(path))]
    older = [other for other in others if path.is_file() and _written(other) < _written(path)]
    if older:
        return f"Use the one saved before it: {shlex.quote(str(older[0]))}."
    return f"Use another one: {shlex.quote(str(others[0]))}." if others else "No other one is beside it: train again."


def check_same(path: Path, what: str, then: Mapping[str, int], now: Mapping[str, int]) -> None:
    """StateError naming each value that a checkpoint and this run must share and do not."""
    differing = [name for name in then if then[name] != now.get(name)]
    if differing:
        was = ", ".join(f"{name}={then[name]}" for name in differing)
        has = ", ".join(f"{name}={now.get(name)}" for name in differing)
        raise StateError(f"{path}: expected the checkpoint's {what} ({was}), got {has}. Leave these out to resume.")


class _Remembering(io.RawIOBase):
    """Passes writes on and keeps the OSError that torch would replace by a message of its own."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.problem: OSError | None = None

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:  # a buffer, whose type Python 3.11 does not name
        try:
            return self._file.write(data)
        except OSError as problem:
            self.problem = problem
            raise

    def flush(self) -> None:
        if not self.closed:
            self._file.flush()


# The directory


def saved(directory: Path) -> list[Path]:
    """The checkpoints of a directory, branch by branch, oldest first."""
    if not directory.is_dir():
        return []
    return sorted((path for path in directory.iterdir() if CHECKPOINT_NAME.fullmatch(path.name)), key=_branch_and_step)


def _branch_and_step(path: Path) -> tuple[int, int]:
    match = CHECKPOINT_NAME.fullmatch(path.name)
    return (int(match[2] or 1), int(match[1])) if match else (1, -1)


def branch_of(path: Path) -> int:
    return _branch_and_step(path)[0]


def newest(directory: Path) -> Path:
    """The checkpoint to go on from: the newest of the branch that ``latest.pt`` names."""
    found = saved(directory)
    link = directory / LATEST
    if link.is_symlink():  # also one that dangles: its name says which branch
        named = link.readlink()
        of_branch = [path for path in found if branch_of(path) == branch_of(named)]
        if CHECKPOINT_NAME.fullmatch(named.name) and of_branch:
            return of_branch[-1]
    elif link.is_file():  # a copy made by a tool that follows links
        return link
    if not found:
        what = "none in it" if directory.is_dir() else "no such directory"
        raise FileNotFoundError(
            f"{directory}: expected the out directory of a run, with a checkpoint, got {what}. Make one with: "
            f"lowtide train --out-dir {shlex.quote(str(directory) if directory.name else f'{directory}/')}."
        )
    return max(found, key=_written)


def _written(path: Path) -> tuple[int, tuple[int, int]]:
    with contextlib.suppress(OSError):
        return path.stat().st_mtime_ns, _branch_and_step(path)
    return 0, _branch_and_step(path)


def best(directory: Path) -> Path:
    """The checkpoint with the lowest val loss, or the newest where none was named."""
    link = directory / BEST
    return link.resolve() if link.is_file() else newest(directory)


def named(place: Path) -> Path:
    """The checkpoint that ``place`` is, or the newest of the out directory that it is."""
    return place if place.is_file() or place.suffix == ".pt" else newest(place)


@dataclass(frozen=True)
class Branch:
    """Where one run saves."""

    directory: Path
    number: int = 1
    lineage: tuple[str, ...] = ()  # the checkpoints at which this branch and its forebears left another one
    origins: frozenset[str] = frozenset()  # what this run and its forebears came from

    def save(self, contents: Contents, keep: int, *, is_best: bool = False) -> Path:
        """Write one checkpoint, name it the latest (and the best), then let the oldest of this branch go."""
        suffix = f"-{self.number}" if self.number > 1 else ""
        path = self.directory / f"step-{contents['step']:08d}{suffix}.pt"
        past: Past = {**contents["run"], "file": path.name, "lineage": list(self.lineage)}
        write_checkpoint(path, {**contents, "run": past}, beside=saved(self.directory))
        for link in (LATEST, BEST) if is_best else (LATEST,):
            _point(self.directory / link, path.name)
        if self.number > 1 and CHECKPOINT_NAME.fullmatch(self.lineage[-1]):
            _point(self.directory / f"branch-{self.number}.pt", self.lineage[-1])
        self._prune(keep)
        return path

    def _prune(self, keep: int) -> None:
        named = {link.readlink().name for link in _links(self.directory)}
        mine = [path for path in saved(self.directory) if branch_of(path) == self.number]
        for old in mine[:-keep]:
            if old.name not in named | self.origins:
                with contextlib.suppress(OSError):  # a directory of that name is not ours to remove
                    old.unlink()


def continued(directory: Path, resumed: Path, past: Past) -> Branch:
    """The branch of a run that goes on from ``resumed``, whose memory of itself is ``past``."""
    found = saved(directory)
    lineage = tuple(past.get("lineage", ()))
    came_from = past.get("file", resumed.name)
    here = resumed.parent.resolve() == directory.resolve() and CHECKPOINT_NAME.fullmatch(came_from) is not None
    number = branch_of(Path(came_from))
    if not (here and [path.name for path in found if branch_of(path) == number][-1:] == [came_from]):
        number = 1 + max(map(branch_of, found), default=0)
        lineage += (came_from,) if here else (str(resumed.resolve()),)
    return Branch(directory, number, lineage, frozenset({came_from, *lineage}))


def _links(directory: Path) -> list[Path]:
    """``latest.pt``, ``best.pt``, and ``branch-2.pt``, which names what branch 2 came from."""
    return [link for name in (LATEST, BEST, "branch-*.pt") for link in directory.glob(name) if link.is_symlink()]


def tidy(directory: Path) -> None:
    """Remove what a killed writer left behind."""
    names = f".step-*.tmp .{LATEST}.* .{BEST}.* .branch-*.pt.* .weights.safetensors.*.tmp .train.png.*.tmp"
    for pattern in names.split():
        for temporary in directory.glob(pattern):
            temporary.unlink(missing_ok=True)


def set_aside(directory: Path, also: tuple[str, ...] = ()) -> Path | None:
    """Move an earlier run's checkpoints out of a new run's way, into a directory of their own; nothing is deleted."""
    found = saved(directory)
    if not found:
        return None
    number = 1
    while (aside := directory / f"earlier-{number}").exists():
        number += 1
    aside.mkdir()
    copies = [path for name in (LATEST, BEST, *also) if (path := directory / name).is_file() and not path.is_symlink()]
    for path in (*found, *_links(directory), *copies):
        path.rename(aside / path.name)
    return aside


def _point(link: Path, name: str) -> None:
    """A link that always exists and is never half-written; on a file system without links the files' times decide."""
    temporary = link.with_name(f".{link.name}.{os.getpid()}")
    with contextlib.suppress(OSError):
        temporary.unlink(missing_ok=True)
        temporary.symlink_to(name)
        temporary.replace(link)


# The lock


@contextlib.contextmanager
def only_run(directory: Path) -> Iterator[None]:
    """Hold the directory for this process; DirectoryInUseError, naming the other run, when it is taken.

    A run that fails before it saves anything leaves no directory behind that was not there before.
    """
    made = [one for one in (directory, *directory.parents) if not one.exists()]
    directory.mkdir(parents=True, exist_ok=True)
    path = directory.resolve() / _LOCK
    if path in _locked:  # and must not be opened: closing it would drop the lock that is there
        raise _in_use(directory, f"process {os.getpid()}, this one")
    file = open_own(path, os.O_RDWR | os.O_CREAT)
    try:
        _lock(file.number, directory)
        _locked.add(path)
        yield
    except BaseException:
        if made and [one.name for one in directory.iterdir()] == [_LOCK]:
            with contextlib.suppress(OSError):  # somebody else's by now
                path.unlink()
                for one in made:
                    one.rmdir()
        raise
    finally:
        _locked.discard(path)
        file.close()


def _lock(descriptor: int, directory: Path) -> None:
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as problem:
        if problem.errno in (errno.EACCES, errno.EAGAIN):
            holder = os.read(descriptor, 200).decode(errors="replace").strip() or "another process"
            raise _in_use(directory, holder) from problem
        return  # no locks here: some network and FUSE file systems
    with contextlib.suppress(OSError):  # a full disk: the lock holds, only its name is missing
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)


def _in_use(directory: Path, holder: str) -> DirectoryInUseError:
    return DirectoryInUseError(
        f"{directory}: expected a directory that no other run is using, got one in use by {holder}. "
        "Use another --out-dir, or end that run first."
    )
