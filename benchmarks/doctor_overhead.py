"""What watching costs: CPU of the watcher as a share of one core at the default rate, its memory over a simulated week,
and the time of a scrape.

    python -m benchmarks.doctor_overhead [SECONDS]     # about four minutes

Each program is watched by a ``lowtide doctor`` of its own, whose CPU time and highest RSS are the cost; the machine may
be busy otherwise. The promises: under 1 % of a core and 30 MiB, also for a tree of 64 processes with 500 GB mapped in
10,000 mappings; under 30 MiB for a week of samples, under 64 MiB on the disk and to judge it from there; ``/metrics``
under 5 ms, also the slowest of a hundred. The figures are written into docs/doctor.md too.
"""

from __future__ import annotations

import itertools
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
import tracemalloc
import urllib.request
from pathlib import Path

from benchmarks.measure import Figure, report
from lowtide.memory import Sample, Trace, traces
from lowtide.memory.measure.process import status
from lowtide.memory.samples import FileSample, ProcessSample, Ring
from lowtide.units import format_size

MIB = 2**20
PAGE = Path(__file__).parents[1] / "docs" / "doctor.md"
START = 10.0  # seconds in which short programs are looked at more closely
IMPORTS = 0.7  # seconds until a doctor has loaded what it needs and begun

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

MANY = """
import mmap, os, sys
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
os.ftruncate(fd, 8 * 2**30)
kept = []
for number in range(64):
    if number == 63 or os.fork() == 0:
        for place in range(157):  # 64 * 157 * 50 MB; every other with other rights, or they merge
            rights = mmap.PROT_READ | (mmap.PROT_WRITE if place % 2 else 0)
            space = mmap.mmap(fd, 50_000_000, prot=rights, offset=place * 4096)
            space[0]; kept.append(space)
        if number < 63:
            sys.stdin.readline(); os._exit(0)
print('ready', flush=True); sys.stdin.read()
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


def cost(program: str, arguments: list[str], seconds: float) -> tuple[float, float, int]:
    """Share of one core a doctor spends watching in the first ten seconds and after them, and the most it held."""
    words = [sys.executable, "-c", program, *arguments]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        watching = [sys.executable, "-m", "lowtide", "doctor", "--pid", str(child.pid), "--seconds"]
        with subprocess.Popen([*watching, str(START + seconds + 60)], stdout=subprocess.DEVNULL) as doctor:
            time.sleep(IMPORTS)
            times = [(time.monotonic(), _cpu_seconds(doctor.pid))]
            for wait in (START, seconds):
                time.sleep(wait)
                times.append((time.monotonic(), _cpu_seconds(doctor.pid)))
            held = status(doctor.pid)["VmHWM"]
            doctor.kill()
        child.kill()
    first, after = ((later[1] - sooner[1]) / (later[0] - sooner[0]) for sooner, later in itertools.pairwise(times))
    return first, after, held


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


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
            "64 processes, 500 GB mapped in 10,000 mappings": (MANY, [sparse]),
        }
        rows, figures = [], []
        for name, (program, arguments) in programs.items():
            first, after, memory = cost(program, arguments, seconds)
            rows.append(f"| {name} | {after:.2%} | {first:.2%} | {format_size(memory)} |\n")
            figures += [
                bound(f"{name}: share of a core", after * 100, "%", 1),
                bound("  held", memory / MIB, "MiB", 30),
            ]
    where = f"{os.cpu_count()} CPUs, Linux {os.uname().release}"
    load = f"load average {os.getloadavg()[0]:.0f}"
    held, (scrape, slow) = week_of_samples(), seconds_per_scrape()
    size, took, memory = saved_week()
    figures += [
        bound("a simulated week of samples", held / MIB, "MiB", 30),
        bound("  on the disk", size / MIB, "MiB", 64),
        bound("  judged from there", memory / MIB, "MiB", 64),
        bound("a scrape of /metrics, the slowest of a hundred", slow * 1000, "ms", 5),
    ]
    more = (
        f"A simulated week of samples, each with 24 files and 8 processes, takes {format_size(held)} of memory "
        f"(promised: under 30 MiB). Saved with `--save`, a week in which every sample moves takes at most "
        f"{format_size(size)} on the disk, and is judged from there in {took:.1f} s and {format_size(memory)} "
        f"(promised: under 64 MiB each). A scrape of `/metrics` takes {scrape * 1000:.1f} ms, the slowest of a hundred "
        f"{slow * 1000:.1f} ms (400 scrapes of a doctor at work; promised: under 5 ms).\n"
    )
    dated = f"{time.strftime('%Y-%m-%d')}: {where}, Python {platform.python_version()}; {load}."
    write(f"{''.join(rows)}\n{more}\n{dated}\n")
    return report("Doctor: what watching costs", figures)


def bound(what: str, ours: float, unit: str, most: float) -> Figure:
    return Figure(what, ours, most, unit, most, at_most=True)


def week_of_samples() -> int:
    """Heap of the ring after a week at one sample per second, each with owners of its own."""
    tracemalloc.start()
    ring = Ring()
    for second in range(7 * 86_400):
        if second % 20 == 0 or second > 7 * 86_400 - 1000:  # thinned anyway: every 20th second is as good
            ring.add(_sample(second))
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return held


def _sample(second: int) -> Sample:
    files = tuple(FileSample(f"/data/{n}", 2**40, second * n, n, n, n, "ext4", False) for n in range(24))
    processes = tuple(
        ProcessSample(n, 1, "python", second + n, second, 0, n, 0, second, second, 0, False) for n in range(8)
    )
    sizes = (second * 1000, second * 2000, second * 3000, second, second, 0)
    return Sample(float(second), *sizes, processes=processes, files=files)


def saved_week() -> tuple[int, float, int]:
    """The largest a week's trace ever was on the disk, and the seconds and memory it takes to judge it from there."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "week.jsonl")
        head = Trace("python train.py", 0.0, 0.25)
        writer, largest = traces.TraceWriter(path, head), 0
        for second in range(0, 7 * 86_400, 10):  # some 60,000 lines; ten times as many are thinned to as few
            writer.write(_sample(second))
            largest = max(largest, path.stat().st_size)
        writer.end(head)
        told = subprocess.run([sys.executable, "-c", JUDGES, path], capture_output=True, text=True, check=True).stdout
    took, memory = told.split()
    return largest, float(took), int(memory) * 1024


JUDGES = """
import sys, time
from lowtide.memory import judge, traces
begin = time.perf_counter()
judge(traces.load(sys.argv[1]))
took = time.perf_counter() - begin
(line,) = [line for line in open("/proc/self/status") if line.startswith("VmHWM")]
print(took, line.split()[1])
"""

CHURNS = """
import time
kept = []
while True:
    kept.append(bytearray(b"x" * 200_000)); time.sleep(0.01)
    if len(kept) > 3000: kept.clear()
"""


def seconds_per_scrape() -> tuple[float, float]:
    """Over HTTP, from connecting to the last byte, of a doctor at work: the median and the 99th of a hundred."""
    words = [sys.executable, "-m", "lowtide", "doctor", "--listen", ":0", "--", sys.executable, "-c", CHURNS]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as doctor:
        assert doctor.stderr is not None
        url = doctor.stderr.readline().split()[-1]
        time.sleep(5)
        took = []
        for _ in range(400):
            begin = time.perf_counter()
            urllib.request.urlopen(url).read()
            took.append(time.perf_counter() - begin)
            time.sleep(0.02)
        doctor.terminate()  # it passes that on to its command
        doctor.communicate()
    return statistics.median(took), statistics.quantiles(took, n=100)[98]


def write(body: str) -> None:
    """Put the figures between their marks in the page."""
    head = (
        f"| watched | share of one core | in its first {START:.0f} s | memory of the doctor |\n|---|---:|---:|---:|\n"
    )
    before, mark, rest = PAGE.read_text(encoding="utf-8").partition("<!-- numbers: overhead -->\n")
    _, end, after = rest.partition("<!-- end -->")
    if not mark or not end:
        raise ValueError(f"{PAGE.name}: expected marks for 'overhead', got none. Add them where the figures go.")
    PAGE.write_text(before + mark + head + body + end + after, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(1 if main() else 0)
