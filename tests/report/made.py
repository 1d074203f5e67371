"""Traces made by hand for the report tests: exact numbers, hostile names, any length."""

from __future__ import annotations

import io
import math

from rich.console import Console

from lowtide.memory import Sample, Trace, Verdict
from lowtide.memory.samples import CgroupSample, FileSample, ProcessSample
from lowtide.memory.traces import from_dict, to_dict
from lowtide.report.terminal import render
from lowtide.units import MIB

HOSTILE = (
    "</script><script>window.owned = 1</script>",
    "<img src=x onerror='window.owned = 1'>",
    '"><svg onload=window.owned=1>',
    "a\u2028window.owned = 1;\u2029//",
    "\x1b[2J\x1b]0;owned\x07",
    "photo\u202egpj.exe",
    "-->${window.owned = 1}$style",
    "[bold red]markup[/]",
    "caf\udce9",  # bytes that were no UTF-8, as os.fsdecode gives them
)


def sample(seconds: float, *, name: str = "python", path: str = "/data/train.bin", **sizes: int) -> Sample:
    """A sample with sizes in MiB; processes and files that fit them."""
    full = {kind: sizes.get(kind, 0) * MIB for kind in ("anon", "mapped", "cache", "dirty", "tables", "shmem")}
    process = ProcessSample(
        pid=4242,
        parent=1,
        name=name,
        swap=0,
        rss_anon=full["anon"],
        rss_file=full["mapped"],
        rss_shmem=full["shmem"],
        forked=False,
        anon=full["anon"],
        mapped=full["mapped"],
        shmem=full["shmem"],
        tables=full["tables"],
    )
    file = FileSample(
        path=path,
        size=4096 * MIB,
        cached=full["mapped"] + full["cache"] + full["dirty"],
        dirty=full["dirty"],
        mapped=full["mapped"],
        found=0,
        filesystem="ext4",
        memory=False,
    )
    return from_dict(Sample, {"seconds": seconds, **full, "processes": [to_dict(process)], "files": [to_dict(file)]})


def cgroup(limit: int | None, *, path: str = "/job") -> CgroupSample:
    return CgroupSample(2, path, 900 * MIB, limit, 100 * MIB, 800 * MIB, 300 * MIB, 500 * MIB, 0, 0, 12, 0)


def mapped_trace(count: int = 120, *, command: str = "python train.py", budget: int | None = 256 * MIB) -> Trace:
    """A memmap that becomes resident over a minute: what most people ask about."""
    samples = tuple(
        sample(60 * place / max(1, count - 1), anon=80, mapped=16 + place * 800 // count, cache=40, tables=2)
        for place in range(count)
    )
    return made(samples, command=command, budget=budget)


def made(samples: tuple[Sample, ...], *, command: str = "python train.py", budget: int | None = None) -> Trace:
    machine = {
        "system": "Linux 6.18",
        "python": "3.11.7",
        "memory": str(24 * 1024 * MIB),
        "limit": str(24 * 1024 * MIB),
        "limit set by": "machine",
    }
    return Trace(command, 1_800_000_000.0, 0.25, machine, samples, {}, budget)


def hostile_trace() -> Trace:
    """Every outside text of a report is an attack."""
    samples = tuple(
        sample(
            float(place),
            anon=50,
            mapped=20 * place,
            name=HOSTILE[place % len(HOSTILE)],
            path=HOSTILE[place % len(HOSTILE)],
        )
        for place in range(45)
    )
    trace = made(samples, command=" ".join(HOSTILE))
    trace.machine["system"] = HOSTILE[0]
    trace.machine[HOSTILE[1]] = HOSTILE[2]
    trace.missing["cache"] = HOSTILE[0]
    return trace


def long_trace(count: int) -> Trace:
    """Hours of a slow wave with one peak of one sample in one kind and another in another."""
    samples = [
        sample(place * 1.0, anon=200 + round(50 * math.sin(place / 700)), mapped=300, cache=10)
        for place in range(count)
    ]
    samples[count // 3] = sample(count // 3 * 1.0, anon=900, mapped=300, cache=10)
    samples[count // 2] = sample(count // 2 * 1.0, anon=200, mapped=300, shmem=5, cache=10)
    return made(tuple(samples))


def plain(trace: Trace, verdict: Verdict, width: int = 110) -> str:
    """The report of a terminal as text without colour."""
    console = Console(file=io.StringIO(), width=width, color_system=None, highlight=False)
    with console.capture() as captured:
        console.print(render(trace, verdict))
    return "\n".join(line.rstrip() for line in captured.get().splitlines()) + "\n"
