"""What preparing holds while 5 GB of text go by, as a picture, and how long a terabyte would take, as a table.

python -m benchmarks.prepare_memory                 docs/pictures/prepare.png and the table in docs/prepare.md
python -m benchmarks.prepare_memory --size 1GB      less of it: too few teeth for its growth to mean much
python -m benchmarks.prepare_memory --leak 32MiB    only its growth, with a leak that this must show

Every 250 MB of the text have their letters turned by one more place, so that most words are new to the tokenizer's
cache. Memory is Pss of every process of a run, looked at by the run itself as its input goes by.

Each worker's memory is a saw: a cache grows, then the encoder is loaded anew. Medians of two fifths of a run mostly
tell where the teeth of the workers happen to stand: the same code had 1, 13 and 18 MiB, and up to 45 in other sittings.
Growth here is, process by process, the median slope between any two looks after the first fifth that are at least a
third of that span apart (Theil and Sen; nearer ones see the rising side of one tooth), times the span. A line added to
a saw adds just its own slope, and teeth of two workers that meet do not matter. Of 500 made-up pairs of saws none was
off by more than 3 MiB; medians of fifths were by up to 20. Six runs of a version that grew had 14 to 25 MiB, six runs
since then -9 to 14. With a leak of 32 MiB planted in the main process: 27 and 40; in each of two workers: 63. 32 are
asked for; the bound is 24, above all runs without a leak and below all with one.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.measure import Figure, facts, report
from benchmarks.prepare import CORES, LARGE, SEPARATOR, TEXT, WORK, made_jsonl, made_text, made_tokenizer, sources
from lowtide.prepare import Resources
from lowtide.units import parse_size

PAGE = Path(__file__).parent.parent / "docs" / "prepare.md"
LOOKS = 400

PROGRAM = """
import sys
from benchmarks.prepare_memory import held
from lowtide.prepare import Request, prepare

path, output, separator, tokenizer, every, leak = sys.argv[1:]
seen, leaked = 0, []

def look(status):
    global seen
    if status.stage == "encoding" and status.done >= seen * int(every):
        seen += 1
        leaked.append(b"x" * int(leak))
        print(status.done, *held(), flush=True)

prepare([path], output, Request(tokenizer=tokenizer, separator=separator), progress=look)
"""


def held(process: str = "self") -> list[int]:
    """Pss of this process and each of its children, the oldest first; 0: it has just ended."""
    tasks = Path(f"/proc/{process}/task")
    children = [word for task in tasks.iterdir() for word in (task / "children").read_text().split()]
    found = []
    for one in (process, *sorted(children, key=int)):
        found.append(0)
        with contextlib.suppress(OSError, StopIteration):
            lines = Path(f"/proc/{one}/smaps_rollup").read_text().splitlines()
            found[-1] = 1024 * next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return found


def turned_text(size: int) -> Path:
    path = WORK / f"turned-{size}.txt"
    with path.open("wb") as file:
        for text in sources(size):
            file.write(text + SEPARATOR)
    return path


def run(path: Path, tokenizer: Path, leak: int) -> NDArray[np.int64]:
    """For each look: bytes of input, and bytes that each process holds. ``leak``: bytes that this program leaks after
    the first fifth, and a quarter of them before."""
    shutil.rmtree(WORK / "out", ignore_errors=True)
    every, some = path.stat().st_size // LOOKS, leak // (LOOKS * 4 // 5)
    words = [str(path), str(WORK / "out"), SEPARATOR.decode(), str(tokenizer), str(every), str(some)]
    done = subprocess.run([sys.executable, "-c", PROGRAM, *words], stdout=subprocess.PIPE, check=True, text=True)
    shutil.rmtree(WORK / "out")
    return np.array([line.split() for line in done.stdout.splitlines()], np.int64)


def growth(seen: NDArray[np.int64]) -> float:
    """Bytes from the first fifth of a run to its end: the median slope of each process, times that span."""
    after = seen[len(seen) // 5 :]
    one, other = np.triu_indices(len(after), len(after) // 3)
    slopes = (after[other, 1:] - after[one, 1:]) / (after[other, :1] - after[one, :1])
    return float(np.median(slopes, axis=0).sum() * (after[-1, 0] - after[0, 0]))


def draw(seen: NDArray[np.int64], bound: float, out: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, panel = plt.subplots(figsize=(8, 3.6), layout="constrained")
    panel.plot(seen[:, 0] / 1e9, seen[:, 1:].sum(1) / 2**20, color="#1f77b4", lw=1.6)
    panel.axhline(bound, color="#888888", lw=1, ls="--")
    panel.text(0, bound, " budget and workers", va="bottom", fontsize=9, color="#555555")
    about = facts()
    panel.set_title(f"lowtide prepare, {CORES} workers: memory of all processes", loc="left", fontsize=11)
    panel.set_xlabel(f"GB of text read   ({about['cpu']}, Linux {about['kernel']}, {about['date']})", fontsize=9)
    panel.set_ylabel("MiB (Pss)")
    panel.set_ylim(0, bound * 1.15)
    panel.grid(alpha=0.25)
    panel.spines[["top", "right"]].set_visible(False)
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=130)
    print(f"drew {out}")


def processor_seconds(path: Path, *words: str) -> float:
    """User and system time of one run and all its processes."""
    shutil.rmtree(WORK / "out", ignore_errors=True)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "lowtide", "prepare", str(path), "-o", str(WORK / "out"), *words]
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def hours_table(tokenizer: Path) -> str:
    """Processor time of each way, scaled up; what a run of 1 MB takes is its start, and is taken off."""
    by = ("--tokenizer", str(tokenizer))
    rows = [
        ("`tokenizer.json`, 8,192 ids, gigatoken, from `.jsonl`", made_jsonl, LARGE, by),
        ("the same by `tokenizers`", made_jsonl, TEXT // 10, (*by, "--tokenizer-engine", "tokenizers")),
        ("`bytes`, from `.txt`", made_text, 2 * TEXT, ("--separator", SEPARATOR.decode())),
    ]
    about = facts()
    lines = [f"Processor time without the start of the processes, on {about['cpu']}, {about['date']}.", ""]
    lines += ["| | text | processor time | per TB on one processor |", "|---|---|---|---|"]
    for name, made, size, words in rows:
        seconds = processor_seconds(made(size), *words) - processor_seconds(made(TEXT // 100), *words)
        hours = seconds / (size - TEXT // 100) * 1e12 / 3600
        lines.append(f"| {name} | {size / 1e6:.0f} MB | {seconds:.1f} s | {hours:.1f} h |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=parse_size, default=5_000_000_000)
    parser.add_argument("--leak", type=parse_size, default=0)
    parser.add_argument("--out", default="docs/pictures/prepare.png", type=Path)
    arguments = parser.parse_args()
    WORK.mkdir(parents=True, exist_ok=True)
    tokenizer = made_tokenizer(made_jsonl(TEXT))
    seen = run(turned_text(arguments.size), tokenizer, arguments.leak)
    if arguments.leak:
        shutil.rmtree(WORK)
        print(f"growth {growth(seen) / 2**20:.1f} MiB, of which {arguments.leak / 2**20:g} were planted")
        return 0
    table = hours_table(tokenizer)
    mark = "<!-- written by benchmarks.prepare_memory -->"
    PAGE.write_text(re.sub(f"{mark}.*?{mark}", lambda _: f"{mark}\n{table}\n{mark}", PAGE.read_text(), flags=re.DOTALL))
    shutil.rmtree(WORK)
    bound = Resources().budget_bytes(CORES) / 2**20 + 128 * CORES
    draw(seen, bound, arguments.out)
    most = seen[:, 1:].sum(1).max() / 2**20
    size = f"{arguments.size / 1e9:g} GB"
    return report(
        "Prepare memory: all processes",
        [
            Figure(f"most held, {size} of text", most, 1, "MiB", bound, at_most=True),
            Figure("growth after the first fifth", growth(seen) / 2**20, 1, "MiB", 24, at_most=True),
        ],
    )


if __name__ == "__main__":
    sys.exit(1 if main() else 0)
