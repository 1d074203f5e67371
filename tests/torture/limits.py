"""Tiny cgroups and stated budgets: random reading of data far larger than either, measured from outside.

A program reads in a child process, inside a memory cgroup of its own where one can be made. The child must not be
killed, and the highest point of its memory (VmHWM, the kernel's own mark) may rise above where reading began by no more
than the budget and what a Python interpreter wobbles. What was asked for as an ordinary array is the caller's own and
is added. Half of the files are read beforehand in large pieces, so that the page cache holds them in large folios.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from tests.torture.data import BOUNDED
from tests.torture.tally import Tally

MIB = 1 << 20
WOBBLE = 16 * MIB
SIZE = 256 * MIB
AUTO = 64 * MIB  # what an unstated budget is for batches this small
CGROUPS = ((Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"), (Path("/sys/fs/cgroup"), "memory.max"))

READER = """
import json, os, resource, sys
import numpy as np
import lowtide
ask = json.loads(sys.argv[1])
if ask["cgroup"]:
    with open(ask["cgroup"] + "/cgroup.procs", "w") as file:
        file.write(str(os.getpid()))
def mark():
    lines = open("/proc/self/status").read().splitlines()
    return {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines if line.startswith(("VmHWM", "VmRSS"))}
with lowtide.open(ask["path"], dtype="uint32", shape=(-1, ask["width"]), strategy=ask["strategy"],
                  cache=ask["cache"], budget=ask["budget"]) as array:
    array[:2], array[[1, 0]], next(array.shuffled(2)).sum()
    before = mark()["VmRSS"]
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # the mark begins again from what is resident now
    own = 0
    for kind, size, steps in ask["steps"]:
        if kind == "index":
            numbers = np.random.default_rng(size).integers(0, len(array), size)
            own = max(own, 3 * size * ask["width"] * 4)
            try:
                found = array[numbers][:, 0]
            except lowtide.BudgetError:
                continue  # refused with the way out, before a byte was read
            assert np.array_equal(found, numbers * ask["width"])
        elif kind == "column":
            try:
                column = array[:, 3]
            except lowtide.BudgetError:
                continue
            own = max(own, 3 * column.nbytes)
            assert np.array_equal(column, np.arange(len(array), dtype=np.uint32) * ask["width"] + 3)
        else:
            held = []
            for _, batch in zip(range(steps), getattr(array, kind)(size)):
                first = batch[:, 0].astype(np.int64)
                assert not (first % ask["width"]).any() and (batch[:, -1] == first + ask["width"] - 1).all()
                held = [*held[-1:], batch]
    print(json.dumps([mark()["VmHWM"] - before, own]))
"""


def small_cgroup(limit: int, name_of_program: str) -> Path | None:
    """Named after the program's own directory, so that nobody else's is ever taken for it."""
    for root, name in CGROUPS:
        if not (root / name).exists() and not (root / "cgroup.subtree_control").exists():
            continue
        directory = root / name_of_program
        try:
            directory.mkdir()
            (directory / name).write_text(str(limit))
        except OSError:
            with suppress(OSError):
                directory.rmdir()
            continue
        return directory
    return None


def program(rng: random.Random, directory: Path, tally: Tally, rounds: int) -> None:
    width = rng.choice((162, 512, 1024))
    path = directory / "rows.u32"
    with path.open("wb") as file:
        for first in range(0, SIZE // 4 // width, 8192):
            last = min(first + 8192, SIZE // 4 // width)
            np.arange(first * width, last * width, dtype=np.uint32).tofile(file)
        os.fsync(file.fileno())
    for _ in range(rounds):
        tally.tried += 1
        ask, limit = asked(rng, path, width)
        if rng.random() < 0.5:
            with path.open("rb", buffering=0) as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                while file.read(MIB):
                    pass
        cgroup = small_cgroup(limit, directory.name) if rng.random() < 0.5 else None
        tally.fired += 1
        try:
            measure({**ask, "cgroup": str(cgroup) if cgroup else ""}, limit, tally)
        finally:
            if cgroup:
                with suppress(OSError):
                    cgroup.rmdir()
        tally.tell()


def asked(rng: random.Random, path: Path, width: int) -> tuple[dict[str, Any], int]:
    """What the child is to do, and the cgroup's limit: budget, interpreter, the caller's own arrays, a little more."""
    stated = rng.choice((8, 16, 32, 64, 0)) * MIB
    budget = stated or AUTO
    row = width * 4
    most = budget // 4 // row
    steps: list[tuple[str, int, int]] = []
    for _ in range(rng.randint(1, 4)):
        kind = rng.choice(("chunks", "chunks", "shuffled", "shuffled", "sample", "index", "column"))
        size = min(most, rng.choice((16, 256, 1024, most)))
        through = min(400, max(4, 96 * MIB // (size * row)))
        steps.append((kind, size, rng.choice((1, 24, through))))  # few batches teach a strategy other things than many
    ask = {
        "path": str(path),
        "width": width,
        "budget": stated or "auto",
        "strategy": rng.choice(BOUNDED),
        "cache": rng.choice(("auto", "keep", "drop")),
        "steps": steps,
    }
    return ask, budget + 96 * MIB


def measure(ask: dict[str, Any], limit: int, tally: Tally) -> None:
    budget = ask["budget"] if ask["budget"] == "auto" else f"{ask['budget'] // MIB} MiB"
    where = f"strategy={ask['strategy']}, cache={ask['cache']}, budget={budget}, "
    where += f"rows of {ask['width'] * 4} B, {ask['steps']}"
    if ask["cgroup"]:
        where += f", in a cgroup of {limit // MIB} MiB"
    child = subprocess.run(
        [sys.executable, "-c", READER, json.dumps(ask)], capture_output=True, text=True, check=False, timeout=300
    )
    if child.returncode == -signal.SIGKILL:
        tally.found("killed", f"{where}: killed for memory")
    elif child.returncode:
        last = child.stderr.strip().splitlines()[-1] if child.stderr.strip() else f"exit {child.returncode}"
        tally.found("wrong rows" if "AssertionError" in last else "error", f"{where}: {last}"[:700])
    else:
        grew, own = json.loads(child.stdout)
        allowed = (AUTO if ask["budget"] == "auto" else ask["budget"]) + own + WOBBLE
        if grew > allowed:
            words = f"expected at most {allowed / MIB:.0f} MiB above the start, got {grew / MIB:.0f} MiB"
            tally.found("budget broken", f"{where}: {words}")


def clean(directory: Path) -> None:
    """The cgroup that a killed program left: its own, by name, and no other."""
    for root, _ in CGROUPS:
        with suppress(OSError):
            (root / directory.name).rmdir()
