"""Traces on disk - JSON lines of our own, and memory-profiler's ``.dat`` so that ``mprof plot`` opens them - and
samples and verdicts as dicts, lists, numbers and text, and back.

The first line holds everything but the samples, each further line one sample, the last line how it ended; each is with
the kernel the moment it is written, so a trace whose writer was killed is read up to its last line. About 2 KB per
sample; in long calm they are written more and more rarely. A file that reaches 32 MiB is rewritten in place without
every other one of its older samples, peaks kept: a week takes no more space than an hour. It is read line by line, and
no more samples are kept than the watcher itself keeps. The dataclasses' own annotations say what a dict must hold, so
that a damaged trace is refused by the name of the field; unknown keys are passed over.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from lowtide.errors import FormatError
from lowtide.memory import samples as measured
from lowtide.memory.judge import findings
from lowtide.memory.samples import KINDS, MOST_SAMPLES, NEWEST, Sample, Trace, thinned
from lowtide.units import MIB

_Value = TypeVar("_Value")
_PLAIN: dict[str, tuple[type, ...]] = {"int": (int,), "float": (int, float), "str": (str,), "bool": (bool,)}
_FORMAT = "lowtide trace 1"
_LONGEST_LINE = 8 * MIB  # a sample of 64 processes and 24 files has about 30,000
_MOST_LINES, _MOST_BYTES = 6000, 32 * MIB  # of a file
_MOST_READ = 16 * MIB  # bytes of the lines that become samples when a file is read
_AT_THE_END = ("missing", "budget", "exit_code", "ended", "peak_rss", "machine")  # known only then
_CALM_SAMPLES = 2000  # a time in which nothing moves is written as about this many samples
_LEAST_STEP, _STEP_SHARE = MIB, 0.01


@dataclasses.dataclass(frozen=True, slots=True)
class _Line:
    """Where one sample lies in a file; of the sample itself only its sizes, to thin by."""

    sizes: Sample
    place: int
    length: int


class _KeptLines:
    """The samples of a file in the order of time, thinned as a ``Ring`` is when they are too many or too long."""

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most, self._most_bytes = most, most_bytes
        self._bytes = 0
        self.lines: list[_Line] = []

    def add(self, line: _Line) -> bool:
        """Whether older ones went."""
        self.lines.append(line)
        self._bytes += line.length
        if len(self.lines) <= self._most and self._bytes <= self._most_bytes:
            return False
        cut = len(self.lines) - min(NEWEST, len(self.lines) // 3)
        kept = {id(sizes) for sizes in thinned([each.sizes for each in self.lines[:cut]])}
        self.lines = [each for each in self.lines[:cut] if id(each.sizes) in kept] + self.lines[cut:]
        while len(self.lines) > 2 and sum(each.length for each in self.lines) > 0.9 * self._most_bytes:
            self.lines = [*self.lines[:-1:2], self.lines[-1]]  # few, and all of them long or peaks
        self._bytes = sum(each.length for each in self.lines)
        return True


class TraceWriter:
    """Writes a trace as it happens. What was written survives a SIGKILL of the writer; not a crash of the machine."""

    def __init__(self, path: str | os.PathLike[str], head: Trace) -> None:
        if not os.fspath(path):
            raise ValueError("save: expected the name of a file, got empty text. Use save='trace.jsonl'.")
        self._path = Path(path).resolve()  # a link stays a link when the file is rewritten
        flags = os.O_RDWR if self._path.is_file() or not self._path.exists() else os.O_WRONLY
        self._fd = os.open(self._path, flags | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._kept, self._count = _KeptLines(_MOST_LINES, _MOST_BYTES), 0
        self._last: Sample | None = None
        self._skipped: Sample | None = None
        self._head = _line({"format": _FORMAT, **_head(head)})
        self._end = self._written(self._fd, self._head)

    def add(self, sample: Sample) -> None:
        """One more sample; one in which nothing moved may be left out."""
        if self._last is None or _worth(self._last, sample):
            self.write(sample)
        else:
            self._skipped = sample

    def end(self, trace: Trace) -> None:
        """The last line, and the last sample if it was left out."""
        if self._fd < 0:
            return
        if self._skipped is not None:
            self.write(self._skipped)
        head = _head(trace)
        last = {"samples": self._count, **{name: head[name] for name in _AT_THE_END}}
        self._written(self._fd, _line(last))
        os.close(self._fd)
        self._fd = -1

    def write(self, sample: Sample) -> None:
        """One more sample, in any case."""
        self._last, self._skipped = sample, None
        length = self._written(self._fd, _line(to_dict(sample)))
        sizes = _bare(sample.seconds, [sample.of(kind) for kind in KINDS])
        thinner = self._kept.add(_Line(sizes, self._end, length))
        self._end += length
        self._count += 1
        if thinner:
            self._write_anew()

    def _write_anew(self) -> None:
        """The lines that are kept, in a new file in place of the old one. What is no file goes on as it is."""
        if not stat.S_ISREG(os.fstat(self._fd).st_mode):
            return
        fd, name = tempfile.mkstemp(prefix=f"{self._path.name}.", dir=self._path.parent)
        try:
            place, lines = self._written(fd, self._head), []
            for line in self._kept.lines:
                length = self._written(fd, os.pread(self._fd, line.length, line.place))
                lines.append(_Line(line.sizes, place, length))
                place += length
            os.fchmod(fd, stat.S_IMODE(os.fstat(self._fd).st_mode))
            Path(name).replace(self._path)
        except BaseException:
            os.close(fd)
            Path(name).unlink(missing_ok=True)
            raise
        os.close(self._fd)
        self._fd, self._kept.lines, self._end, self._count = fd, lines, place, len(lines)

    @staticmethod
    def _written(fd: int, text: bytes) -> int:
        left = text
        while left:  # a full disk raises; a short write goes on
            left = left[os.write(fd, left) :]
        return len(text)


def save(trace: Trace, path: str | os.PathLike[str]) -> None:
    """Write a whole trace as JSON lines."""
    writer = TraceWriter(path, trace)
    for sample in trace.samples:
        writer.write(sample)
    writer.end(trace)


def load(path: str | os.PathLike[str]) -> Trace:
    """Read a trace back, in bounded memory. One that was cut short is read up to the cut and has ``cut_short`` set."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe nobody writes to must not block
    with open(descriptor, "rb") as file:  # noqa: PTH123  # a descriptor
        is_file = stat.S_ISREG(os.fstat(descriptor).st_mode)
        head = _object(file.readline(_LONGEST_LINE)) if is_file else None
        if head is None or head.get("format") != _FORMAT:
            raise FormatError(
                f"{os.fspath(path)}: expected a first line with format {_FORMAT!r}, got another file. "
                "Record one with lowtide doctor --save."
            )
        kept = _KeptLines(MOST_SAMPLES, _MOST_READ)
        count, whole, place = 0, False, file.tell()
        while line := file.readline(_LONGEST_LINE):
            data = _object(line)
            if data is None:  # the writer was stopped inside this line
                break
            if "samples" in data and "seconds" not in data:
                whole = data["samples"] == count
                head |= {name: data[name] for name in _AT_THE_END if name in data}
                break
            count += 1
            kept.add(_Line(_sizes_of(data), place, len(line)))
            place += len(line)
        lines = (os.pread(descriptor, each.length, each.place) for each in kept.lines)
        samples = tuple(from_dict(Sample, _object(line)) for line in lines)
    trace = from_dict(Trace, head)
    return dataclasses.replace(trace, samples=samples, cut_short=not whole)


def save_mprof(trace: Trace, path: str | os.PathLike[str]) -> None:
    """Write RSS over time as memory-profiler does: one number, shared pages counted in each process."""
    with Path(path).open("w", encoding="utf-8", errors="backslashreplace") as file:
        file.write(f"CMDLINE {' '.join(trace.command.split())}\n")
        for sample in trace.samples:
            file.write(f"MEM {sample.rss / MIB:.6f} {trace.started + sample.seconds:.4f}\n")


def _head(trace: Trace) -> dict[str, Any]:
    head = to_dict(dataclasses.replace(trace, samples=()))
    del head["samples"]
    return head


def _worth(before: Sample, now: Sample) -> bool:
    if now.seconds - before.seconds >= now.seconds / _CALM_SAMPLES:
        return True
    return any(
        abs(now.of(kind) - before.of(kind)) >= max(_LEAST_STEP, _STEP_SHARE * before.of(kind))
        for kind in (*KINDS, "retained")
    )


def _line(data: dict[str, Any]) -> bytes:
    return (json.dumps(data, separators=(",", ":")) + "\n").encode()


def _object(line: bytes) -> dict[str, Any] | None:
    try:
        data = json.loads(line.decode("utf-8", "replace"))
    except ValueError:
        return None
    return data if isinstance(data, dict) else None


def _sizes_of(data: dict[str, Any]) -> Sample:
    """The sizes of a line that was read, most of which is skipped; FormatError if they are not numbers."""
    seconds, *values = (data.get(name) for name in ("seconds", *KINDS))
    if not isinstance(seconds, int | float) or not all(isinstance(value, int) for value in values):
        return from_dict(Sample, data)
    return _bare(seconds, values)


def _bare(seconds: float, sizes: list[Any]) -> Sample:
    anon, mapped, cache, dirty, tables, shmem = sizes  # in the order of KINDS, which is that of the fields
    return Sample(seconds, anon, mapped, cache, dirty, tables, shmem)


def to_dict(value: Any) -> dict[str, Any]:
    """A value of samples.py or findings.py as JSON-safe dicts, with the computed parts a reader would want."""
    data = _plain(value)
    if isinstance(value, findings.Verdict):
        data["danger"] = value.danger
        if value.budget is not None:
            data["budget"]["ok"] = value.budget.ok
        if value.held is not None:
            data["held"] = held_dict(value.held)
    return data  # type: ignore[no-any-return]  # a dataclass becomes a dict


def held_dict(held: findings.HeldMemory) -> dict[str, Any]:
    """What was held, by kind: ``end`` and ``peak`` in bytes, the ``owners`` at the peak; the sums under ``total``."""
    totals = {name: getattr(held, name) for name in _HELD_TOTALS} | {"share": held.share}
    return {**{each.kind: _plain(each) for each in held.kinds}, "total": totals}


def no_held_dict() -> dict[str, Any]:
    """The same keys where nothing was measured."""
    kinds: dict[str, Any] = {
        kind: {"kind": kind, "end": None, "peak": None, "seconds": None, "owners": []} for kind in (*KINDS, "hugetlb")
    }
    return {**kinds, "total": dict.fromkeys((*_HELD_TOTALS, "share"))}


_HELD_TOTALS = tuple(item.name for item in dataclasses.fields(findings.HeldMemory) if item.name != "kinds")


def _plain(value: Any) -> Any:
    """As dataclasses.asdict, four times quicker: nothing here needs a deep copy."""
    if dataclasses.is_dataclass(value):
        return {name: _plain(getattr(value, name)) for name in _field_names(value.__class__)}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value


@functools.cache
def _field_names(kind: type) -> tuple[str, ...]:
    return tuple(item.name for item in dataclasses.fields(kind))


def from_dict(kind: type[_Value], data: object) -> _Value:
    """The value back from its dict; FormatError when a field is missing or of another type."""
    if not isinstance(data, dict):
        raise FormatError(f"trace: expected {kind.__name__} as an object, got {type(data).__name__}. Record it again.")
    if kind is findings.HeldMemory:
        data = _holding_fields(data)
    known = {}
    for item in dataclasses.fields(kind):  # type: ignore[arg-type]  # every kind passed in is one of our dataclasses
        if item.name in data:
            known[item.name] = _read(f"{kind.__name__}.{item.name}", str(item.type), data[item.name])
    try:
        return kind(**known)
    except TypeError as problem:  # a field without default is missing
        raise FormatError(
            f"trace: expected a whole {kind.__name__}, got one with keys {sorted(map(str, data))}. Record it again."
        ) from problem


def _holding_fields(data: dict[str, Any]) -> dict[str, Any]:
    total = data.get("total")
    if not isinstance(total, dict):
        return data
    return {**total, "kinds": [item for name, item in data.items() if name != "total"]}


def _read(name: str, declared: str, value: Any) -> Any:
    """``value`` if it is what the field declares, built up where that is another value of ours."""
    optional = declared.removesuffix(" | None")
    if optional != declared and value is None:
        return None
    inner = optional.removeprefix("tuple[").removesuffix(", ...]")
    if optional.startswith("tuple[") and isinstance(value, list | tuple):
        build = _builder(inner)
        if build is not None:
            return tuple(build(item) for item in value)
        if all(isinstance(item, str) for item in value):
            return tuple(value)
    elif optional == "dict[str, str]" and isinstance(value, dict):
        return {str(key): str(item) for key, item in value.items()}
    elif (build := _builder(optional)) is not None and isinstance(value, dict):
        return build(value)
    wanted = _PLAIN.get(optional, ())
    if isinstance(value, wanted) and (optional == "bool" or not isinstance(value, bool)):
        return value
    raise FormatError(f"trace: expected {name} to be {declared}, got {value!r:.60}. Record it again.")


def _builder(name: str) -> Callable[[object], Any] | None:
    kind = getattr(measured, name, None) or getattr(findings, name, None) if name[:1].isupper() else None
    return None if kind is None else lambda data: from_dict(kind, data)
