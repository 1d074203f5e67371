"""Every benchmark in turn, each figure beside its baseline, and the tables of docs/benchmarks.md: ``make bench``.

    python -m benchmarks.run                     every part, in one sitting
    python -m benchmarks.run engine documents    some of them; the tables of the others stay as they are

Each part is a process of its own. Figures of an earlier sitting are deleted first, so that one page never shows two.
Exit 1 when a figure misses what we ask of ourselves, or a part failed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

from benchmarks import tables
from benchmarks.measure import RESULTS

PARTS = (
    "arrays",
    "together",
    "tokens",
    "engine",
    "documents",
    "local_shuffle",
    "passes",
    "chunked",
    "remote",
    "writing",
    "confined",
    "prepare",
    "prepare_memory",
    "training",
    "doctor_overhead",
)


def forget() -> None:
    """Remove the figures of earlier sittings; what other targets wrote has no ``figures`` and stays."""
    for path in RESULTS.glob("*.json"):
        if "figures" in json.loads(path.read_text()):
            path.unlink()


def main(parts: list[str]) -> int:
    if not parts:
        forget()
    missed = []
    for part in parts or PARTS:
        began = time.monotonic()
        print(f"== {part}, load average {os.getloadavg()[0]:.1f}", flush=True)
        if subprocess.run([sys.executable, "-m", f"benchmarks.{part}"], check=False).returncode:
            missed.append(part)
        print(f"== {part} took {time.monotonic() - began:.0f} s", flush=True)
    tables.main()
    print(f"parts that missed a figure, or failed: {', '.join(missed) or 'none'}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
