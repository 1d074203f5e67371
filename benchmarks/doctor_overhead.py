"""What watching costs: CPU of the watcher as a share of one core, at the default rate, for growing kinds of
program.

Run it: ``python benchmarks/doctor_overhead.py [SECONDS]``. Each program is watched from this process, whose
own CPU time is the cost; the machine may be busy otherwise. The promise is under 1 %, also with a sparse
200 GiB file mapped and 4 GiB of it resident. The figures are written into docs/doctor.md.
"""

from __future__ import annotations

import itertools
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from lowtide.memory import watch
from lowtide.units import format_size

PROMISE = 0.01
PAGE = Path(__file__).parents[1] / "docs" / "doctor.md"
START = 10.0  # seconds in which short programs are looked at more closely

IDLE = "print('ready', flush=True); input()"

MAPPED = """
import mmap, os, sys
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
os.ftruncate(fd, 200 * 2**30)
space = mmap.mmap(fd, 0, prot=mmap.PROT_READ)
for offset in range(0, int(sys.argv[2]) * 2**30, 4096):
    space[offset]
print('ready', flush=True); input()
"""

FILES = """
import os, sys, tempfile
kept = [tempfile.TemporaryFile(dir=sys.argv[1]) for _ in range(500)]
for file in kept:
    file.write(bytes(2**16)); file.flush()
print('ready', flush=True); input()
"""

WORKERS = """
import os, sys
kept = bytearray(b'x' * 2**28)
for _ in range(16):
    if os.fork() == 0:
        sys.stdin.readline(); os._exit(0)
print('ready', flush=True); sys.stdin.read()
"""


def cost(program: str, arguments: list[str], seconds: float) -> tuple[float, float, str]:
    """Share of one core spent watching in the first ten seconds and after them, and what the watched program held."""
    words = [sys.executable, "-c", program, *arguments]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        times = [(time.monotonic(), time.process_time())]
        with watch(pid=child.pid) as watched:
            for wait in (START, seconds):
                time.sleep(wait)
                times.append((time.monotonic(), time.process_time()))
        child.kill()
    first, after = ((later[1] - sooner[1]) / (later[0] - sooner[0]) for sooner, later in itertools.pairwise(times))
    last = watched.samples[-1]
    held = f"mapped {format_size(last.mapped)}, anon {format_size(last.anon)}, {len(last.processes)} processes"
    return first, after, held


def main() -> int:
    seconds = float(sys.argv[1]) if sys.argv[1:] else 20.0
    with tempfile.TemporaryDirectory() as directory:
        sparse = str(Path(directory, "sparse"))
        programs = {
            "an idle interpreter": (IDLE, []),
            "500 open files": (FILES, [directory]),
            "200 GiB mapped, nothing resident": (MAPPED, [sparse, "0"]),
            "200 GiB mapped, 4 GiB resident": (MAPPED, [sparse, "4"]),
            "a parent with 256 MiB and 16 forked workers": (WORKERS, []),
        }
        worst, rows = 0.0, []
        for name, (program, arguments) in programs.items():
            first, after, held = cost(program, arguments, seconds)
            worst = max(worst, after)
            rows.append(f"| {name} | {after:.2%} | {first:.2%} |\n")
            print(f"{name:<46} {after:6.2%} of one core ({first:.2%} in the first {START:.0f} s; {held})", flush=True)
    where = f"{os.cpu_count()} CPUs, Linux {os.uname().release}"
    print(f"worst {worst:.2%} after the start, promised under {PROMISE:.0%}, on {where}")
    load = f"load average {os.getloadavg()[0]:.0f}"
    write(f"{''.join(rows)}\n{time.strftime('%Y-%m-%d')}: {where}, Python {platform.python_version()}; {load}.\n")
    return int(worst >= PROMISE)


def write(body: str) -> None:
    """Put the figures between their marks in the page."""
    head = f"| watched | share of one core | in its first {START:.0f} s |\n|---|---:|---:|\n"
    before, mark, rest = PAGE.read_text(encoding="utf-8").partition("<!-- numbers: overhead -->\n")
    _, end, after = rest.partition("<!-- end -->")
    if not mark or not end:
        raise ValueError(f"{PAGE.name}: expected marks for 'overhead', got none. Add them where the figures go.")
    PAGE.write_text(before + mark + head + body + end + after, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
