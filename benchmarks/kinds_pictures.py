"""The pictures and numbers of docs/what-is-holding-memory.md: each kind on purpose, and the known cures measured.

Run it: ``python -m benchmarks.kinds_pictures`` (about two minutes; 1 GiB in a temporary directory). Programs
run in processes of their own, watched from outside by Lowtide and by memory-profiler at once. The page's tables
are rewritten in place between their marks, so that no number in it is typed by hand; the report's screenshot
needs chromium and is left alone without it.
"""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from memory_profiler import memory_usage

from benchmarks.kinds_passes import BATCH, BATCHES, CHUNK, ROW, SIZE, WAYS
from benchmarks.measure import drop, facts, read_ahead
from lowtide.machine import page_cache
from lowtide.memory import Trace, Verdict, judge, watch
from lowtide.memory.judge.findings import COLOURS
from lowtide.report import html, png
from lowtide.report.series import STACK, series, size_ticks, time_ticks
from lowtide.units import MIB, format_size

ROOT = Path(__file__).resolve().parent.parent
PAGE, PICTURES = ROOT / "docs" / "what-is-holding-memory.md", ROOT / "docs" / "pictures"
PLANTED = ROOT / "tests" / "memory" / "planted"
PASSES = Path(__file__).resolve().with_name("kinds_passes.py")
INTERVAL = 0.1  # seconds; below it the watcher saves on looks at files sooner, and the picture of a pass has steps
KINDS = ("anon", "retained", "mapped", "cache", "dirty", "tables", "shmem", "workers", "healthy")


@dataclass(frozen=True)
class Run:
    """One program watched to its end: Lowtide's trace, and RSS as memory-profiler saw it, in bytes."""

    trace: Trace
    verdict: Verdict
    witness: tuple[tuple[float, float], ...]
    left: int  # page cache of the file after the program had ended

    def peak(self, kind: str) -> int:
        sizes = [sample.of(kind) for sample in self.trace.samples]
        return max(sizes) - sizes[0]

    @property
    def witness_grew(self) -> float:
        """RSS at the end above RSS after start-up, the same stretch the verdict is about."""
        begin, end = self.witness[0][0], self.witness[-1][0]
        late = [size for second, size in self.witness if second >= begin + 0.3 * (end - begin)]
        return max(late[-max(1, len(late) // 4) :]) - late[0]

    @property
    def witness_peak(self) -> float:
        return max(size for _, size in self.witness) - self.witness[0][1]

    @property
    def read(self) -> int:
        return self.trace.samples[-1].read_bytes - self.trace.samples[0].read_bytes


NAMES = {
    "plain": "np.memmap, kept open",
    "recreate": "np.memmap recreated each time",
    "madvise": "madvise(DONTNEED) each time",
    "lowtide": 'lowtide.open(cache="drop")',
}


def watched(words: list[str], command: str, *, path: Path | None = None, children: bool = False) -> Run:
    """Run a program to its end under both watchers. One that reads ``path`` finds none of it in the page cache,
    and is watched from when it has said that it is ready."""
    witness: list[tuple[float, float]] = []
    pipe = None if path is None else subprocess.PIPE
    with subprocess.Popen([sys.executable, *words], cwd=ROOT, stdin=pipe, stdout=pipe) as child:
        if path is not None:
            drop(path)
            assert child.stdout is not None
            child.stdout.readline()
        with watch(
            pid=child.pid, interval=INTERVAL, about="command" if path is None else "process", command=command
        ) as watching:
            if path is not None:
                assert child.stdin is not None
                child.stdin.write(b"go\n")
                child.stdin.flush()
            while child.poll() is None:
                try:
                    (seen,) = memory_usage(child.pid, max_iterations=1, interval=0.01, include_children=children)
                except Exception:  # it ended while memory-profiler looked
                    break
                if seen:
                    witness.append((time.monotonic(), seen * MIB))
                time.sleep(0.02)
        if child.wait() != 0:
            raise SystemExit(f"{command}: ended with exit code {child.returncode}")
        watching.finish(child.returncode)
    left = page_cache(path).cached if path is not None else 0
    return Run(watching.trace, judge(watching.trace), tuple(witness), left)


def grow_kinds(directory: str) -> dict[str, Run]:
    runs = {}
    for kind in KINDS:
        words = [str(PLANTED / f"{kind}.py"), directory]
        runs[kind] = watched(words, f"python {kind}.py", children=kind == "workers")
        expected, got = "nothing" if kind == "healthy" else kind, runs[kind].verdict.grew
        if got != expected:  # a page that explains a kind by a run where it did not show would teach nothing
            raise SystemExit(f"{kind}.py: expected verdict {expected}, got {got}. Run it again on a quieter machine.")
        png.write(runs[kind].trace, runs[kind].verdict, PICTURES / f"kind-{kind}.png")
        print(f"{kind}: {runs[kind].verdict.headline}")
    return runs


def measure_cures(path: Path) -> dict[str, Run]:
    runs = {}
    with read_ahead(path, 128):
        for way in WAYS:
            runs[way] = watched([str(PASSES), way, str(path)], way, path=path)
            print(f"{way}: mapped {format_size(runs[way].peak('mapped'))}, left {format_size(runs[way].left)}")
    return runs


def draw_cures(runs: dict[str, Run]) -> None:
    """Four passes on one scale: the only honest way to compare heights."""
    four = {name: series(runs[f"chunks_{way}"].trace) for way, name in NAMES.items()}
    top = max(each.top for each in four.values() if each)
    with matplotlib.rc_context({"font.size": 9}):
        figure = Figure(figsize=(10, 6), dpi=130, layout="constrained")
        for axes, (name, drawn) in zip(figure.subplots(2, 2, sharey=True).flat, four.items(), strict=True):
            assert drawn is not None
            axes.stackplot(
                drawn.seconds, *(drawn.kinds[kind] for kind in STACK), colors=[COLOURS[k] for k in STACK], linewidth=0
            )
            axes.plot(drawn.seconds, drawn.rss, color="#1d2329", linestyle=":", linewidth=1.6)
            axes.set_title(name, loc="left", fontweight="bold")
            axes.set(xlim=(0, drawn.last), ylim=(0, top))
            axes.set_yticks(*zip(*size_ticks(top), strict=True))
            axes.set_xticks(*zip(*time_ticks(drawn.last), strict=True))
            axes.spines[["top", "right", "left"]].set_visible(False)
            axes.tick_params(length=0)
            axes.grid(axis="y", color="#e9e7e2")
            axes.set_axisbelow(True)
        handles: list[object] = [Patch(color=COLOURS[kind], label=kind) for kind in ("anon", "mapped", "cache")]
        handles.append(
            matplotlib.lines.Line2D([], [], color="#1d2329", linestyle=":", label="RSS, as other tools show it")
        )
        figure.legend(handles=handles, loc="outside lower left", ncols=4, frameon=False)
        figure.suptitle("One cold pass over a 1 GiB file, four ways", x=0.01, ha="left", fontsize=12, fontweight="bold")
        figure.savefig(PICTURES / "cures.png")


def draw_page(run: Run) -> None:
    """The HTML report as a reader sees it first, without what only this machine has (paths, tables)."""
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        print("no chromium: docs/pictures/report.png was left as it is", file=sys.stderr)
        return
    with tempfile.TemporaryDirectory() as directory:
        html.write(run.trace, run.verdict, Path(directory, "page.html"))
        flags = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--window-size=1100,1592")
        words = [program, *flags, f"--user-data-dir={directory}/profile", f"--screenshot={PICTURES / 'report.png'}"]
        subprocess.run([*words, Path(directory, "page.html").as_uri()], check=True, capture_output=True)


def kinds_table(runs: dict[str, Run]) -> str:
    lines = [
        "| program | Lowtide says | that kind grew | memory-profiler's RSS grew | so RSS shows |",
        "|---|---|---:|---:|---|",
    ]
    for kind, run in runs.items():
        grew = run.verdict.grew
        about = {"workers": "anon", "nothing": "anon"}.get(grew, grew)
        size = next((growth.grew for growth in run.verdict.growth if growth.kind == about), 0)
        if grew == "retained":
            size = run.trace.samples[-1].retained
        share = run.witness_grew / size if size > 8 * MIB else None
        shows = (
            "nothing, rightly"
            if share is None
            else "nothing of it"
            if share < 0.1
            else "all of it"
            if share > 0.9
            else f"{share:.0%} of it"
        )
        if grew == "retained":
            shows = "heap, as if it were in use"
        own = f"+{format_size(size)}" if grew != "nothing" else "-"
        seen = ("+" if run.witness_grew >= 0 else "-") + format_size(abs(run.witness_grew))
        lines.append(f"| `{kind}.py` | **{grew}** ({run.verdict.confidence}) | {own} | {seen} | {shows} |")
    return "\n".join(lines)


def cures_table(runs: dict[str, Run], of: str) -> str:
    useful = SIZE if of == "chunks" else BATCHES * BATCH * ROW
    headings = ("way", "mapped, most", "anon, most", "RSS, most (memory-profiler)", "left in the page cache afterwards")
    headings += ("read from disk, per useful byte",)
    lines = [f"| {' | '.join(headings)} |", "|---" + (len(headings) - 1) * "|---:" + "|"]
    for way, name in NAMES.items():
        run = runs[f"{of}_{way}"]
        sizes = [format_size(size) for size in (run.peak("mapped"), run.peak("anon"), run.witness_peak, run.left)]
        lines.append(f"| `{name}` | {' | '.join(sizes)} | {run.read / useful:.1f} |")
    return "\n".join(lines)


def workers_line(run: Run) -> str:
    """What RSS, summed over parent and children, made of pages they shared and then copied."""
    late = [sample for sample in run.trace.samples if len(sample.processes) > 1]
    first, last = format_size(late[0].anon), format_size(max(sample.anon for sample in late))
    summed = format_size(max(size for _, size in run.witness))
    count = max(len(sample.processes) for sample in late)
    return (
        f"Summed over the {count} processes, RSS stood at {summed} from the fork to the end. What they held together "
        f"went from {first} to {last}."
    )


def machine_line() -> str:
    known = facts()
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("numpy", "memory-profiler"))
    system = f"{known['cpu']}, Linux {known['kernel']}, Python {known['python']}"
    return f"{known['date']}: {system}, {versions}; read_ahead_kb 128; load average {os.getloadavg()[0]:.0f}."


def rewrite(parts: dict[str, str]) -> None:
    """Put each part between its two marks in the page."""
    text = PAGE.read_text(encoding="utf-8")
    for name, part in parts.items():
        head, begin, rest = text.partition(f"<!-- numbers: {name} -->\n")
        _, end, tail = rest.partition("<!-- end -->")
        if not (begin and end):
            raise SystemExit(
                f"{PAGE.name}: expected marks for {name!r}, got none. Add <!-- numbers: {name} --> and <!-- end -->."
            )
        text = f"{head}{begin}{part}\n{end}{tail}"
    PAGE.write_text(text, encoding="utf-8")


def main() -> None:
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=os.environ.get("LOWTIDE_BENCH_DIR")) as directory:
        kinds = grow_kinds(directory)
        path = Path(directory, "rows.bin")
        with path.open("wb") as file:
            for _ in range(SIZE // CHUNK):
                file.write(os.urandom(CHUNK))
            os.fsync(file.fileno())
        cures = measure_cures(path)
    draw_cures(cures)
    draw_page(kinds["mapped"])
    tables = {"chunks": cures_table(cures, "chunks"), "rows": cures_table(cures, "rows"), "kinds": kinds_table(kinds)}
    rewrite({**tables, "workers": workers_line(kinds["workers"]), "machine": machine_line()})


if __name__ == "__main__":
    main()
