"""Kills and resumes every trainer's recipe and compares the rows it trained on. Writes docs/trainers/index.md.

build/trainers/bin/python -m benchmarks.trainers [recipe ...]      `make trainers` makes that environment

A recipe of examples/ is killed with SIGKILL at step 7, started again and killed at step 13, and started a third time,
once with as many ranks as before and once with two. Every run must begin at the last checkpoint, and every step of
every run must have the rows that the feed has at that step. Documents and mixtures: one kill, one resume.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples"
PAGE = ROOT / "docs" / "trainers" / "index.md"
SHOWN = ROOT / "benchmarks" / "results" / "trainers.json"
BEGIN, END = "<!-- table: make trainers -->", "<!-- end -->"
sys.path.insert(0, str(EXAMPLES))
from recipe import BATCH, SAVE_EVERY, STEPS, checksum, feed_of  # noqa: E402

RECIPES = {  # example: (what a reader calls it, its page, the package it is of)
    "hf_trainer": ("Hugging Face Trainer", "hf.md", "transformers"),
    "accelerate_loop": ("accelerate", "accelerate.md", "accelerate"),
    "lightning_fit": ("Lightning", "lightning.md", "lightning"),
    "stateful_loader": ("StatefulDataLoader, 2 workers", "stateful-dataloader.md", "torchdata"),
    "grain_loop": ("Grain", "grain.md", "grain"),
    "nanogpt_resume": ("nanoGPT's loop", "../nanogpt.md", "torch"),
    "ddp_resume": ("plain DDP", "ddp.md", "torch"),
    "jax_resume": ("JAX", "jax.md", "jax"),
}
KILLS = (7, 13)


class WrongRowsError(Exception):
    """What a recipe trained on is not what the feed has."""


def run(example: str, directory: Path, kind: str, *, kill_at: int = -1, ranks: int = 1) -> dict[int, list[int]]:
    """One run of a recipe: the checksums of the rows it trained on, by step, of all ranks together."""
    command = [sys.executable]
    if ranks > 1:
        command += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    environment = {**os.environ, "RECIPE_KILL_AT": str(kill_at), "OMP_NUM_THREADS": "1", "PYTHONPATH": str(EXAMPLES)}
    done = subprocess.run(
        [*command, str(EXAMPLES / f"{example}.py"), str(directory), kind],
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    if done.returncode != (0 if kill_at < 0 else -signal.SIGKILL):
        raise WrongRowsError(f"ended with {done.returncode}: {done.stderr.strip()[-400:]}")
    rows: dict[int, list[int]] = {}
    for rank in range(ranks):
        path = directory / f"rows-{rank}.jsonl"
        if not path.exists():
            raise WrongRowsError(f"rank {rank} trained on nothing")
        for line in path.read_text().splitlines():
            step, found = json.loads(line)
            rows.setdefault(step, []).extend(found)
        path.unlink()
    return rows


def check(rows: dict[int, list[int]], first: int, last: int, expected: dict[int, list[int]]) -> None:
    if sorted(rows) != list(range(first, last + 1)):
        raise WrongRowsError(f"trained steps {min(rows)} to {max(rows)} instead of {first} to {last}")
    for step, found in rows.items():
        if sorted(found) != sorted(expected[step]):
            raise WrongRowsError(f"step {step} had other rows than the feed")


def series(example: str, kind: str, kills: tuple[int, ...]) -> dict[str, str]:
    """Is every run exact, and is the last one also with two ranks?"""
    found = {}
    with tempfile.TemporaryDirectory() as place:
        directory = Path(place) / "out"
        directory.mkdir()
        feed = feed_of(directory, kind)
        expected = {step: [checksum(row) for row in feed[step][0]] for step in range(STEPS)}
        first = 0
        try:
            for kill_at in kills:
                check(run(example, directory, kind, kill_at=kill_at), first, kill_at, expected)
                first = kill_at // SAVE_EVERY * SAVE_EVERY
            before = Path(place) / "before"
            shutil.copytree(directory, before)
            check(run(example, directory, kind), first, STEPS - 1, expected)
            found["exact"] = "yes"
        except WrongRowsError as problem:
            found["exact"] = f"no: {problem}"
            return found
        if kind == "plain":
            shutil.rmtree(directory)
            before.rename(directory)
            try:
                check(run(example, directory, kind, ranks=2), first, STEPS - 1, expected)
                found["ranks"] = "yes"
            except WrongRowsError as problem:
                found["ranks"] = f"no: {problem}"
    return found


def lines_to_write(example: str) -> int:
    """Lines that name something of Lowtide's, or are marked as being there for it; the feed itself is one."""
    count, inside = 0, False
    for line in (EXAMPLES / f"{example}.py").read_text().splitlines():
        begins, ends = "# lowtide: begin" in line, "# lowtide: end" in line
        code = line.strip() and not line.strip().startswith("#")
        marked = "# lowtide" in line or (" lowtide" in line and "import" in line)
        count += bool(code and (inside or marked))
        inside = (inside or begins) and not ends
    return count


def show(example: str) -> tuple[list[str], bool]:
    name, page, package = RECIPES[example]
    plain = series(example, "plain", KILLS)
    others = {kind: series(example, kind, KILLS[:1])["exact"] for kind in ("documents", "mixture")}
    version = importlib.metadata.version(package)
    verdicts = [plain["exact"], plain.get("ranks", "not tried"), others["documents"], others["mixture"]]
    row = [f"[{name}]({page})", f"{package} {version}", str(lines_to_write(example)), *verdicts]
    return row, all(verdict == "yes" for verdict in verdicts)


def main(chosen: list[str]) -> int:
    """The recipes named, or all; the table has what each of them showed last."""
    fine = True
    for example in chosen or RECIPES:
        row, exact = show(example)
        print(" | ".join(row), flush=True)
        fine = fine and exact
        known: dict[str, list[str]] = json.loads(SHOWN.read_text()) if SHOWN.exists() else {}
        known[example] = [*row, f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}"]
        SHOWN.write_text(json.dumps(known, indent=1) + "\n")
        write([known[name] for name in RECIPES if name in known])
    return 0 if fine else 1


def write(rows: list[list[str]]) -> None:
    heads = ["trainer", "tried with", "lines to write", "exact resume", "ranks change", "documents", "mixture", "on"]
    table = ["| " + " | ".join(row) + " |" for row in [heads, ["---"] * len(heads), *rows]]
    about = (
        f"{STEPS} steps of {BATCH} rows over three epochs, a checkpoint every {SAVE_EVERY} steps, killed with SIGKILL "
        f"at steps {KILLS[0]} and {KILLS[1]}. Python "
        f"{sys.version.split()[0]}, torch {importlib.metadata.version('torch')}."
    )
    before, _, rest = PAGE.read_text("utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        raise SystemExit(f"{PAGE.name}: expected {BEGIN} and {END}, got none. Put them back.")
    PAGE.write_text("\n".join([f"{before}{BEGIN}\n", *table, "", about, "", f"{END}{after}"]), "utf-8")


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
