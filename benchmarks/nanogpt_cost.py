"""What nanoGPT's loop costs beside Lowtide's: speed, bytes read, page faults, memory by kind. Writes docs/nanogpt.md.

python -m benchmarks.nanogpt_cost            4 GiB file, 3 rounds, about 4 minutes

Each way runs in a fresh process, in turn; figures are medians over rounds. The picture is of runs from a cold start.
"""

from __future__ import annotations

import contextlib
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import lowtide
from benchmarks.measure import GIB, RESULTS, drop, facts, make_file, read_ahead, warm
from lowtide import machine
from lowtide.memory import process_memory
from lowtide.memory.judge.findings import COLOURS
from lowtide.torch import nanogpt, tensors

LENGTH, BATCH = 1024, 64
SIZE = 4 * GIB
ROUNDS = 3
READ_AHEAD = 128  # KiB: Linux's own default; many a cloud image sets more
WARM_SECONDS, COLD_SECONDS, PICTURE_SECONDS = 3.0, 4.0, 12.0
PAGE = Path(__file__).parent.parent / "docs" / "nanogpt.md"
PICTURE = PAGE.parent / "pictures" / "nanogpt.png"
BEGIN, END = "<!-- table: python -m benchmarks.nanogpt_cost -->", "<!-- end -->"

Step = Callable[[], Any]


def recreated(path: Path) -> Step:
    """nanoGPT's get_batch: a new memmap for every batch."""

    def step() -> Any:
        return _gather(np.memmap(path, dtype=np.uint16, mode="r"))

    return step


def kept(path: Path) -> Step:
    """The same with one memmap kept open, as nanoGPT once had it."""
    data = np.memmap(path, dtype=np.uint16, mode="r")
    return lambda: _gather(data)


def _gather(data: np.ndarray) -> Any:
    starts = torch.randint(len(data) - LENGTH, (BATCH,))
    x = torch.stack([torch.from_numpy(data[i : i + LENGTH].astype(np.int64)) for i in starts])
    y = torch.stack([torch.from_numpy(data[i + 1 : i + 1 + LENGTH].astype(np.int64)) for i in starts])
    return x, y


def drop_in(path: Path, cache: str = "keep") -> Step:
    get_batch = nanogpt(path.parent, block_size=LENGTH, batch_size=BATCH, cache=cache)
    return lambda: get_batch(path.stem)


def dropping(path: Path) -> Step:
    return drop_in(path, "drop")


def feed(path: Path) -> Step:
    batches = tensors(lowtide.open_tokens(path, dtype="uint16", cache="keep").batches(BATCH, length=LENGTH))
    return lambda: next(batches)


WAYS: dict[str, tuple[str, Callable[[Path], Step]]] = {
    "recreated": ("nanoGPT's `get_batch` (a new memmap each batch)", recreated),
    "kept": ("the same, memmap kept open", kept),
    "drop_in": ("`lowtide.torch.nanogpt`", drop_in),
    "dropping": ('`lowtide.torch.nanogpt(..., cache="drop")`', dropping),
    "feed": ("`tensors(feed)`, every window once per epoch", feed),
}


def run(way: str, path: Path, seconds: float, cold: bool) -> dict[str, float]:
    """Batches for so long, in this process; what they cost. A cold run ends before much of the file is cached."""
    torch.set_num_threads(1)
    torch.manual_seed(int(time.time()))
    step = WAYS[way][1](path)
    before, faults, read = process_memory(), _faults(), _read_bytes()
    start = time.perf_counter()
    batches = 0
    enough = read + path.stat().st_size // 10 if cold else float("inf")
    while time.perf_counter() - start < seconds and (batches % 8 or _read_bytes() < enough):
        held = step()
        batches += 1
    spent = time.perf_counter() - start
    del held
    after = process_memory()
    return {
        "windows": batches * BATCH,
        "rate": batches * BATCH / spent,
        "faults": (_faults() - faults) / batches,
        "amplified": (_read_bytes() - read) / (batches * BATCH * (LENGTH + 1) * 2),
        "anon": after.anon - before.anon,
        "mapped": after.mapped - before.mapped,
        "libraries": before.mapped,  # files mapped before the first batch
    }


def _faults() -> int:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_minflt + usage.ru_majflt


def _read_bytes() -> int:
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("read_bytes"))


def in_a_process(way: str, path: Path, seconds: float, kind: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "benchmarks.nanogpt_cost", "--run", way, str(path), str(seconds), kind]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def finished(process: subprocess.Popen[str]) -> dict[str, float]:
    out, _ = process.communicate()
    if process.returncode:
        raise SystemExit(f"nanogpt_cost: a run ended with exit code {process.returncode}")
    found: dict[str, float] = json.loads(out.splitlines()[-1])
    return found


def measure(path: Path) -> dict[str, dict[str, float]]:
    """Medians of every way, warm and cold."""
    rounds: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    for turn in range(ROUNDS):
        for way in WAYS:
            warm(path)
            hot = finished(in_a_process(way, path, WARM_SECONDS, "warm"))
            with read_ahead(path, READ_AHEAD):
                drop(path)
                cold = finished(in_a_process(way, path, COLD_SECONDS, "cold"))
            left = machine.page_cache(path).cached
            rounds[way].append(
                {
                    "warm": hot["rate"],
                    "faults": hot["faults"],
                    "held": hot["anon"] + hot["mapped"],
                    "cold": cold["rate"],
                    "amplified": cold["amplified"],
                    "left": left / cold["windows"],
                }
            )
            print(f"round {turn + 1}, {way}: {rounds[way][-1]}", file=sys.stderr)
    return {way: {key: statistics.median(r[key] for r in found) for key in found[0]} for way, found in rounds.items()}


def table(costs: dict[str, dict[str, float]], about: str) -> str:
    base = costs["recreated"]
    lines = [
        "| way | warm, windows/s | cold, windows/s | read from disk per byte used, cold | "
        "page faults per batch, warm | held after the warm run | page cache filled per window, cold |",
        "|---|---|---|---|---|---|---|",
    ]
    for way, cost in costs.items():
        lines.append(
            f"| {WAYS[way][0]} | {cost['warm']:,.0f} ({cost['warm'] / base['warm']:.1f}x) | {cost['cold']:,.0f} "
            f"({cost['cold'] / base['cold']:.1f}x) | {cost['amplified']:.1f} | {cost['faults']:,.0f} | "
            f"{max(0.0, cost['held']) / 2**20:,.1f} MiB | {cost['left'] / 1024:,.1f} KiB |"
        )
    return "\n".join([*lines, "", about])


def watched(way: str, path: Path) -> tuple[list[tuple[float, ...]], float]:
    """(seconds, anon, mapped, cache) of one run from a cold start, and the windows it gave."""
    drop(path)
    process = in_a_process(way, path, PICTURE_SECONDS, "picture")
    start = time.perf_counter()
    samples = []
    with contextlib.suppress(OSError):  # it ended
        while process.poll() is None:
            now = process_memory(process.pid)
            samples.append((time.perf_counter() - start, now.anon, now.mapped, machine.page_cache(path).cached))
            time.sleep(0.1)
    found = finished(process)
    # Kinds are disjoint: what the process has mapped of the file is not counted as cache again.
    apart = [(t, anon, mapped, cached - max(0, mapped - found["libraries"])) for t, anon, mapped, cached in samples]
    return [(t, anon, mapped, max(0, cached)) for t, anon, mapped, cached in apart if anon], found["windows"]


def draw(path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    ways = ("kept", "recreated", "drop_in", "dropping")
    titles = ("memmap kept open", "nanoGPT: a new memmap each batch", "Lowtide", 'Lowtide, cache="drop"')
    figure, panels = pyplot.subplots(1, len(ways), figsize=(14, 4.2), dpi=130, sharey=True)
    kinds = ("anon", "mapped", "cache")
    top = 0.0
    for panel, way, title in zip(panels, ways, titles, strict=True):
        with read_ahead(path, READ_AHEAD):
            samples, windows = watched(way, path)
        seconds, *columns = zip(*samples, strict=True)
        heights = [[size / 2**20 for size in column] for column in columns]
        panel.stackplot(seconds, *heights, colors=[COLOURS[kind] for kind in kinds], labels=kinds, linewidth=0)
        panel.set_title(f"{title}\n{windows:,.0f} windows in {PICTURE_SECONDS:.0f} s", fontsize=10)
        panel.set_xlabel("seconds, from a cold start")
        panel.spines[["top", "right"]].set_visible(False)
        top = max(top, max(sum(column) for column in zip(*heights, strict=True)))
    panels[0].set_ylabel("MiB")
    panels[0].set_ylim(0, 1.05 * top)
    panels[0].legend(loc="upper left", frameon=False)
    figure.tight_layout()
    figure.savefig(PICTURE)


def main() -> None:
    path = make_file("nanogpt.bin", SIZE)
    with read_ahead(path, READ_AHEAD) as settable:
        ahead = f"read_ahead_kb {READ_AHEAD}" if settable else "this machine's own read_ahead_kb"
    costs = measure(path)
    draw(path)
    known = facts()
    about = (
        f"Windows of {LENGTH:,} tokens, batches of {BATCH}, int64 tensors, a file of {SIZE // GIB} GiB, {ahead}; "
        f"medians of {ROUNDS} rounds in fresh processes. {known['date']}, {known['cpu']}, Linux {known['kernel']}, "
        f"Python {known['python']}, NumPy {known['numpy']}, torch {torch.__version__}."
    )
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "nanogpt-cost.json").write_text(json.dumps({"about": about, "costs": costs}, indent=1) + "\n")
    text = PAGE.read_text()
    head, tail = text.split(BEGIN)[0], text.split(END)[1]
    PAGE.write_text(f"{head}{BEGIN}\n\n{table(costs, about)}\n\n{END}{tail}")
    print(f"wrote {PAGE} and {PICTURE}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--run"]:
        print(json.dumps(run(sys.argv[2], Path(sys.argv[3]), float(sys.argv[4]), sys.argv[5] == "cold")))
    else:
        main()
