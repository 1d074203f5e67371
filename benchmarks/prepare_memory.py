"""What preparing holds while 5 GB of text go by, as a picture, and how long a terabyte would take, as a table.

python -m benchmarks.prepare_memory                 docs/pictures/prepare.png and the table in docs/prepare.md
python -m benchmarks.prepare_memory --size 1GB      less of it

Every 250 MB of the text have their letters turned by one more place, so that most words are new to the tokenizer's
cache. Memory is Pss over all processes of a run, looked at by the run itself as its input goes by.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import resource
import shutil
import statistics
import subprocess
import sys
from pathlib import Path

from benchmarks.measure import Figure, facts, report
from benchmarks.prepare import CORES, LARGE, SEPARATOR, TEXT, WORK, made_jsonl, made_text, made_tokenizer, sources
from lowtide.prepare import Resources
from lowtide.units import parse_size

PAGE = Path(__file__).parent.parent / "docs" / "prepare.md"
LOOKS = 400

PROGRAM = """
import sys
from benchmarks.prepare_memory import tree_bytes
from lowtide.prepare import Request, prepare

path, output, separator, tokenizer, every = sys.argv[1:]
seen = 0

def look(status):
    global seen
    if status.stage == "encoding" and status.done >= seen * int(every):
        seen += 1
        print(status.done, tree_bytes(), flush=True)

prepare([path], output, Request(tokenizer=tokenizer, separator=separator), progress=look)
"""


def tree_bytes(process: str = "self") -> int:
    """Pss of this process and its children."""
    tasks = Path(f"/proc/{process}/task")
    children = [word for task in tasks.iterdir() for word in (task / "children").read_text().split()]
    total = 0
    for one in (process, *children):
        with contextlib.suppress(OSError, StopIteration):
            lines = Path(f"/proc/{one}/smaps_rollup").read_text().splitlines()
            total += 1024 * next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total


def turned_text(size: int) -> Path:
    path = WORK / f"turned-{size}.txt"
    with path.open("wb") as file:
        for text in sources(size):
            file.write(text + SEPARATOR)
    return path


def run(path: Path, tokenizer: Path) -> list[tuple[int, int]]:
    """(bytes of input, bytes held) over one run."""
    shutil.rmtree(WORK / "out", ignore_errors=True)
    words = [str(path), str(WORK / "out"), SEPARATOR.decode(), str(tokenizer), str(path.stat().st_size // LOOKS)]
    done = subprocess.run([sys.executable, "-c", PROGRAM, *words], stdout=subprocess.PIPE, check=True, text=True)
    shutil.rmtree(WORK / "out")
    return [(int(read), int(held)) for read, held in map(str.split, done.stdout.splitlines())]


def draw(seen: list[tuple[int, int]], bound: float, out: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, panel = plt.subplots(figsize=(8, 3.6), layout="constrained")
    panel.plot([done / 1e9 for done, _ in seen], [held / 2**20 for _, held in seen], color="#1f77b4", lw=1.6)
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
    parser.add_argument("--out", default="docs/pictures/prepare.png", type=Path)
    arguments = parser.parse_args()
    WORK.mkdir(parents=True, exist_ok=True)
    tokenizer = made_tokenizer(made_jsonl(TEXT))
    table = hours_table(tokenizer)
    mark = "<!-- written by benchmarks.prepare_memory -->"
    PAGE.write_text(re.sub(f"{mark}.*?{mark}", lambda _: f"{mark}\n{table}\n{mark}", PAGE.read_text(), flags=re.DOTALL))
    path = turned_text(arguments.size)
    seen = run(path, tokenizer)
    shutil.rmtree(WORK)
    bound = Resources().budget_bytes(CORES) / 2**20 + 128 * CORES
    draw(seen, bound, arguments.out)
    most, fifth = max(held for _, held in seen) / 2**20, len(seen) // 5
    # Medians: while an encoder is replaced, a worker holds two for a moment.
    early, late = (statistics.median(held for _, held in part) for part in (seen[fifth : 2 * fifth], seen[-fifth:]))
    size = f"{arguments.size / 1e9:g} GB"
    return report(
        "Prepare memory: all processes",
        [
            Figure(f"most held, {size} of text", most, 1, "MiB", bound, at_most=True),
            Figure("growth, second fifth to last", (late - early) / 2**20, 1, "MiB", 32, at_most=True),
        ],
    )


if __name__ == "__main__":
    sys.exit(1 if main() else 0)
