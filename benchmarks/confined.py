"""A cold feed in a memory cgroup of 128 MiB beside the same feed outside it, and a kept np.memmap for comparison.

python -m benchmarks.confined          16 GiB file, NumPy only; about 2 minutes; needs a cgroup it may create

Each run is a process of its own that enters the cgroup before it imports anything, so that every page counts.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.measure import GIB, Figure, drop, interleaved, make_file, read_ahead, report

SIZE, LIMIT = 16 * GIB, 128 * 1024**2
BATCH, LENGTH, BATCHES, MAPPED_BATCHES = 64, 1024, 1500, 30
ONE, TWO = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")

ENTER = """
import sys
if sys.argv[2]:
    with open(sys.argv[2] + "/cgroup.procs", "w") as file:
        file.write("0")
"""
FEED = """
from itertools import islice
import lowtide
with lowtide.open_tokens(sys.argv[1], dtype="uint16", cache="drop", budget="16MiB") as tokens:
    for x, y in islice(tokens.batches({batch}, length={length}, seed=1), {batches}):
        pass
"""
MEMMAP = """
import numpy as np
data, random = np.memmap(sys.argv[1], np.uint16, "r"), np.random.default_rng(1)
for _ in range({batches}):
    starts = random.integers(0, len(data) - {length} - 1, {batch})
    x = np.stack([data[start : start + {length}].astype(np.int64) for start in starts])
    y = np.stack([data[start + 1 : start + 1 + {length}].astype(np.int64) for start in starts])
"""


@contextlib.contextmanager
def cgroup() -> Iterator[tuple[Path, Callable[[], int]]]:
    """A cgroup limited to 128 MiB, and the kills in it so far."""
    one = (ONE / "memory.limit_in_bytes").exists()
    directory = Path(tempfile.mkdtemp(prefix="lowtide-", dir=ONE if one else TWO))
    (directory / ("memory.limit_in_bytes" if one else "memory.max")).write_text(str(LIMIT))
    events = directory / ("memory.oom_control" if one else "memory.events")

    def kills() -> int:
        return int(dict(line.split() for line in events.read_text().splitlines()).get("oom_kill", 0))

    try:
        yield directory, kills
    finally:
        directory.rmdir()


def run(program: str, path: Path, group: Path | None, batches: int) -> float:
    """Windows read; a run that was killed has read none."""
    script = ENTER + textwrap.dedent(program).format(batch=BATCH, length=LENGTH, batches=batches)
    done = subprocess.run([sys.executable, "-c", script, str(path), str(group or "")], capture_output=True, text=True)
    if done.returncode:
        print(json.dumps({"exit": done.returncode, "said": done.stderr[-300:]}), file=sys.stderr)
    return BATCH * batches if done.returncode == 0 else 0


def main() -> int:
    path = make_file("confined.bin", SIZE)
    try:
        group = contextlib.ExitStack()
        inside, kills = group.enter_context(cgroup())
    except OSError as problem:
        print(f"NOT MEASURED: reading inside a cgroup of 128 MiB - none can be made here ({problem})")
        return 0
    with group, read_ahead(path, 128):
        rates = interleaved(
            {
                "inside": lambda: run(FEED, path, inside, BATCHES),
                "outside": lambda: run(FEED, path, None, BATCHES),
                "memmap inside": lambda: run(MEMMAP, path, inside, MAPPED_BATCHES),
                "memmap outside": lambda: run(MEMMAP, path, None, MAPPED_BATCHES),
            },
            rounds=3,
            discard=1,
            before=lambda: drop(path),
        )
        killed = kills()
    return report(
        "Confined: a cold feed in a cgroup of 128 MiB",
        [
            Figure("windows, cold, drop, in 128 MiB / outside", rates["inside"], rates["outside"], "windows/s", 0.9),
            Figure("the same, a kept np.memmap", rates["memmap inside"], rates["memmap outside"], "windows/s", None),
            Figure("the feed in 128 MiB / the kept np.memmap", rates["inside"], rates["memmap inside"], "windows/s", 1),
            Figure("processes killed in the cgroup", killed, 1, "kills", 0, at_most=True),
        ],
    )


if __name__ == "__main__":
    sys.exit(1 if main() else 0)
