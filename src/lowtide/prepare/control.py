"""The control: what one pass over a corpus holds in a fresh process that reads through a kept ``np.memmap``.

A claim that memory stays low means something only beside what the plain way holds on the same data. A child
maps every shard, keeps the maps, reads windows in a shuffled order as training would, and reports how much of them
is then resident, by kind. Costs one pass over the corpus and as much memory as the corpus is large: that is the point.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lowtide.errors import LowtideError
from lowtide.formats import token_layout

_PROGRAM = """
import json, sys
import numpy as np
from lowtide.memory import process_memory
asked = json.loads(sys.argv[1])
length, dtype = asked["length"], np.dtype(asked["dtype"])
maps = [np.memmap(path, dtype, "r", offset, (count,)) for path, offset, count in asked["shards"]]
starts = [(k, at) for k, one in enumerate(maps) for at in range(0, max(1, len(one) - length), length)]
order = np.random.default_rng(0).permutation(len(starts))
before = process_memory()
trace, total = [], 0
for step, place in enumerate(order.tolist()):
    k, at = starts[place]
    total += int(maps[k][at : at + length].astype(np.int64)[0])
    if step % max(1, len(order) // 200) == 0:
        now = process_memory()
        trace.append([step / len(order), now.mapped - before.mapped, now.anon - before.anon])
now = process_memory()
print(json.dumps({"mapped": now.mapped - before.mapped, "anon": now.anon - before.anon, "trace": trace}))
"""


@dataclass(frozen=True)
class Control:
    """What the kept maps held when every window had been read once."""

    corpus_bytes: int
    mapped: int  # bytes of the files resident in the process
    anon: int
    trace: tuple[tuple[float, int, int], ...]  # (share of the pass done, mapped, anon), for a picture


def kept_memmap(corpus: str | Path, *, length: int = 1024, dtype: str | None = None) -> Control:
    """Read every window of ``length`` tokens once, shuffled, through maps that are kept."""
    layout = token_layout(str(corpus), dtype=dtype)
    asked: dict[str, Any] = {"length": length, "dtype": layout.dtype.str}
    rows = zip(layout.extents, layout.rows, strict=True)
    item = layout.dtype.itemsize
    runs = [(extent.path, *run) for extent, count in rows if count for run in extent.runs()]
    asked["shards"] = [[path, offset, length // item] for path, offset, length in runs]
    command = [sys.executable, "-c", _PROGRAM, json.dumps(asked)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1]
        raise LowtideError(
            f"{corpus}: expected a pass through np.memmap, got: {reason}. Check the corpus with lowtide verify."
        )
    found = json.loads(done.stdout)
    trace = tuple((float(share), int(mapped), int(anon)) for share, mapped, anon in found["trace"])
    return Control(layout.nbytes, found["mapped"], found["anon"], trace)
