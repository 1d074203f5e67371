"""Traces on disk: JSON lines of our own, and memory-profiler's ``.dat`` so that ``mprof plot`` opens them.

One idea: a line is whole or it is not there. The first line holds everything but the samples, each further
line one sample, the last line how it ended, so a trace whose writer was killed is still worth reading up to
the cut. Cost: about 2 KB a sample.
"""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path

from lowtide.errors import FormatError
from lowtide.memory.model import Sample, Trace, from_dict, to_dict
from lowtide.units import MIB

_FORMAT = "lowtide trace 1"


def save(trace: Trace, path: str | os.PathLike[str]) -> None:
    """Write a trace as JSON lines."""
    head = to_dict(dataclasses.replace(trace, samples=()))
    del head["samples"]
    lines = [
        {"format": _FORMAT, **head},
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
            if data.keys() == {"samples"}:
                whole = data["samples"] == len(samples)
                break
            samples.append(from_dict(Sample, data))
    trace = from_dict(Trace, head)
    return dataclasses.replace(trace, samples=tuple(samples), cut_short=not whole)


def save_mprof(trace: Trace, path: str | os.PathLike[str]) -> None:
    """Write RSS over time as memory-profiler does: one number, shared pages counted in each process."""
    with Path(path).open("w", encoding="utf-8") as file:
        file.write(f"CMDLINE {' '.join(trace.command.split())}\n")
        for sample in trace.samples:
            file.write(f"MEM {sample.rss / MIB:.6f} {trace.started + sample.seconds:.4f}\n")


def _object(line: str) -> dict[str, object] | None:
    try:
        data = json.loads(line)
    except ValueError:
        return None
    return data if isinstance(data, dict) else None
