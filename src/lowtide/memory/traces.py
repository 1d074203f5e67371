"""Traces on disk: JSON lines of our own, and memory-profiler's ``.dat`` so that ``mprof plot`` opens them.

One idea: a line is whole or it is not there, and it is with the kernel the moment it is written, so a trace whose
writer was killed is worth reading up to its last line. The first line holds everything but the samples, each further
line one sample, the last line how it ended. Cost: about 2 KB per sample; once a run is longer than ten minutes,
samples in which nothing moved are written more and more rarely, so a week of calm takes megabytes.
"""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

from lowtide.errors import FormatError
from lowtide.memory.plain_values import from_dict, to_dict
from lowtide.memory.samples import KINDS, Sample, Trace
from lowtide.units import MIB

_FORMAT = "lowtide trace 1"
_AT_THE_END = ("missing", "budget", "exit_code", "ended")  # known only then
_CALM = 2000  # a run in which nothing moves is written as about this many samples
_MOVED, _MOVED_SHARE = MIB, 0.01


class TraceWriter:
    """Writes a trace as it happens. What was written survives a SIGKILL of the writer; not a crash of the machine."""

    def __init__(self, path: str | os.PathLike[str], head: Trace) -> None:
        self._path = os.fspath(path)
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._written = 0
        self._last: Sample | None = None
        self._skipped: Sample | None = None
        self._line({"format": _FORMAT, **_head(head)})

    def add(self, sample: Sample) -> None:
        """One more sample; one in which nothing moved may be left out."""
        if self._last is None or _worth(self._last, sample):
            self._sample(sample)
        else:
            self._skipped = sample

    def end(self, trace: Trace) -> None:
        """The last line, and the last sample if it was left out."""
        if self._fd < 0:
            return
        if self._skipped is not None:
            self._sample(self._skipped)
        head = _head(trace)
        self._line({"samples": self._written, **{name: head[name] for name in _AT_THE_END}})
        os.close(self._fd)
        self._fd = -1

    def _sample(self, sample: Sample) -> None:
        self._last, self._skipped = sample, None
        self._written += 1
        self._line(to_dict(sample))

    def _line(self, data: dict[str, Any]) -> None:
        text = (json.dumps(data, separators=(",", ":")) + "\n").encode()
        while text:  # a full disk raises; a short write goes on
            text = text[os.write(self._fd, text) :]


def save(trace: Trace, path: str | os.PathLike[str]) -> None:
    """Write a whole trace as JSON lines."""
    lines = [
        {"format": _FORMAT, **_head(trace)},
        *(to_dict(sample) for sample in trace.samples),
        {"samples": len(trace.samples)},
    ]
    with Path(path).open("w", encoding="utf-8") as file:
        for line in lines:
            file.write(json.dumps(line, separators=(",", ":")) + "\n")


def load(path: str | os.PathLike[str]) -> Trace:
    """Read a trace back. One that was cut short is read up to the cut and has ``cut_short`` set."""
    with Path(path).open(encoding="utf-8", errors="replace") as file:
        head = _object(file.readline())
        if head is None or head.get("format") != _FORMAT:
            raise FormatError(
                f"{os.fspath(path)}: expected a first line with format {_FORMAT!r}, got another file. "
                "Record one with lowtide doctor --save."
            )
        samples: list[Sample] = []
        whole = False
        for line in file:
            data = _object(line)
            if data is None:  # the writer was stopped inside this line
                break
            if "samples" in data and "seconds" not in data:
                whole = data["samples"] == len(samples)
                head |= {name: data[name] for name in _AT_THE_END if name in data}
                break
            samples.append(from_dict(Sample, data))
    trace = from_dict(Trace, head)
    return dataclasses.replace(trace, samples=tuple(samples), cut_short=not whole)


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
    if now.seconds - before.seconds >= now.seconds / _CALM:
        return True
    return any(
        abs(now.of(kind) - before.of(kind)) >= max(_MOVED, _MOVED_SHARE * before.of(kind))
        for kind in (*KINDS, "retained")
    )


def _object(line: str) -> dict[str, Any] | None:
    try:
        data = json.loads(line)
    except ValueError:
        return None
    return data if isinstance(data, dict) else None
