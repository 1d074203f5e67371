"""``lowtide train`` killed, interrupted, branched and starved of disk, against the ledger it writes.

A program is one run of a tiny model, in parts: each part resumes what the part before left, or an older checkpoint (a
branch), on one or two ranks, and is ended by SIGKILL, SIGTERM or SIGINT at a random moment, by a disk that is full, or
not at all. The last part runs to the end. Then: it did end, with exit 0; `lowtide.train.ledger.chain` has every step
once, in order, and the sums of its rows are those of a run that nobody disturbed; `latest.pt` leads to the last step;
the checkpoint that a branch came from is still there. A part that was asked to end did so without a traceback.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from functools import cache
from pathlib import Path

import numpy as np
from tests.torture.tally import Tally

STEPS = 40
PATIENCE = 150.0
FEATURES = {
    "--data-dtype": "uint16",
    "--vocab-size": "64",
    "--batch-size": "4",
    "--block-size": "16",
    "--n-layer": "1",
    "--n-head": "2",
    "--n-embd": "16",
    "--val-fraction": "0.1",
    "--warmup-iters": "2",
    "--eval-interval": "4",
    "--eval-iters": "1",
    "--sample-tokens": "1",
    "--rank-timeout": "20",
    "--max-iters": str(STEPS),
}


@cache
def corpus(directory: Path) -> Path:
    path = directory / "corpus.bin"
    np.random.default_rng(5).integers(0, 64, 20_000).astype(np.uint16).tofile(path)
    return path


class Run:
    """One run in its directory: starts its parts, and says how they ended."""

    def __init__(self, directory: Path, keep: int, world: int) -> None:
        self.directory, self.out, self.ledger = directory, directory / "out", directory / "ledger.jsonl"
        self.out.mkdir()
        self.keep, self.world = keep, world

    def words(self, resume: str | None) -> list[str]:
        words = [sys.executable, "-m", "lowtide", "train", "--no-picture", "--json", "--out-dir", str(self.out)]
        words += ["--ledger", str(self.ledger), "--data", str(corpus(self.directory)), "--keep", str(self.keep)]
        words += [word for pair in FEATURES.items() for word in pair]
        return [*words, *(["--resume", resume] if resume else ["--resume"] if resume == "" else [])]

    def start(self, resume: str | None, world: int) -> list[subprocess.Popen[str]]:
        shared = {**os.environ, "OMP_NUM_THREADS": "1"}
        if world > 1:
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                shared |= {"MASTER_PORT": str(free.getsockname()[1]), "MASTER_ADDR": "127.0.0.1"}
            shared |= {"WORLD_SIZE": str(world), "GLOO_SOCKET_IFNAME": "lo"}
        return [
            subprocess.Popen(
                self.words(resume),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                env=shared if world == 1 else {**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            )
            for rank in range(world)
        ]

    def checkpoints(self) -> list[Path]:
        return sorted(self.out.glob("step-*.pt"))

    def chain(self) -> list[dict[str, int]]:
        """The steps behind the newest weights, as the ledger's own reader has them."""
        from lowtide.train.ledger import chain  # here: it brings torch, which the runner does not need

        return chain(self.ledger)

    def lines(self) -> int:
        return len(self.ledger.read_bytes().splitlines()) if self.ledger.exists() else 0


def finish(ranks: list[subprocess.Popen[str]]) -> tuple[list[int | None], str]:
    """Exit codes, None for a rank that had to be killed, and what the ranks said."""
    ends = time.monotonic() + PATIENCE
    codes: list[int | None] = []
    said = ""
    for rank in ranks:
        try:
            _, error = rank.communicate(timeout=max(1.0, ends - time.monotonic()))
            codes.append(rank.returncode)
        except subprocess.TimeoutExpired:
            rank.kill()
            _, error = rank.communicate()
            codes.append(None)
        said += error or ""
    return codes, said


def disturb(run: Run, ranks: list[subprocess.Popen[str]], number: int, rng: random.Random, tally: Tally) -> None:
    """Wait for a moment - while starting, or some lines further on in the ledger - and send the signal."""
    if rng.random() < 0.2:
        ends = time.monotonic() + rng.random() * 6
        while time.monotonic() < ends:
            tally.tell_now_and_then()
            time.sleep(0.02)
    else:
        wanted, ends = run.lines() + rng.randint(1, STEPS // 2), time.monotonic() + PATIENCE
        while run.lines() < wanted and time.monotonic() < ends and ranks[0].poll() is None:
            tally.tell_now_and_then()
            time.sleep(0.005)
    victims = ranks if number == signal.SIGINT else [rng.choice(ranks)]
    for victim in victims:
        if victim.poll() is None:
            tally.fired += victim is victims[0]
            victim.send_signal(number)


def check_part(codes: list[int | None], said: str, number: int, where: str, tally: Tally) -> None:
    """However a part ended, it ended, and without a traceback; on request with 128 plus the signal."""
    if None in codes:
        tally.found("hung", f"{where}: a rank did not end within {PATIENCE:.0f} s")
    if "Traceback (most recent call last)" in said:
        tally.found("traceback", f"{where}: {said.strip().splitlines()[-1][:300]}")
    elif codes == [1] and number == signal.SIGKILL and "expected to save the checkpoint, got 'No space left" in said:
        return  # killed too late: it had come to its end, and its last checkpoint did not fit on the disk
    elif len(codes) == 1 and codes[0] not in (0, -signal.SIGKILL, 128 + number, -number, None):
        tally.found("wrong exit", f"{where}: expected {128 + number} or 0, got {codes[0]}: {said.strip()[-300:]}")


def check_end(run: Run, where: str, reference: list[int], tally: Tally) -> None:
    try:
        steps = run.chain()
    except Exception as problem:
        tally.found("broken ledger", f"{where}: {type(problem).__name__}: {problem}")
        return
    sums = [entry["sum"] for entry in steps]
    if len(sums) != STEPS:
        tally.found("lost", f"{where}: expected {STEPS} steps behind the weights, got {len(sums)}")
    elif sums != reference:
        first = next(step for step, (a, b) in enumerate(zip(sums, reference, strict=True)) if a != b)
        tally.found("wrong rows", f"{where}: step {first} used other rows than an undisturbed run")
    latest = run.out / "latest.pt"
    if not latest.exists():
        tally.found("latest", f"{where}: latest.pt leads to {latest.readlink() if latest.is_symlink() else 'nothing'}")
    elif f"{STEPS:08d}" not in latest.resolve().name:
        tally.found("latest", f"{where}: expected latest.pt to lead to step {STEPS}, got {latest.resolve().name}")


def undisturbed(directory: Path, tally: Tally) -> list[int]:
    """Sums of the rows of every step, from a run that nobody disturbs."""
    place = directory / "calm"
    place.mkdir()
    run = Run(place, keep=2, world=1)
    ranks = run.start(None, 1)
    while ranks[0].poll() is None:
        tally.tell_now_and_then()
        time.sleep(0.05)
    codes, said = finish(ranks)
    assert codes == [0], said[-500:]
    return [entry["sum"] for entry in run.chain()]


def program(rng: random.Random, directory: Path, tally: Tally, rounds: int) -> None:
    reference = undisturbed(directory, tally)
    place = directory / "run"
    place.mkdir()
    run = Run(place, keep=rng.choice((1, 2, 5)), world=1)
    full = rng.random() < 0.3 and fill_up(run.out, rng)
    history: list[str] = [f"keep {run.keep}"] + (["a small disk"] if full else [])
    for _ in range(rounds):
        resume = "" if run.checkpoints() else None
        came_from = None
        if len(run.checkpoints()) > 1 and rng.random() < 0.4:
            came_from = rng.choice(run.checkpoints()[:-1])
            resume = str(came_from)
        world = rng.choice((1, 1, 1, 2))
        number = rng.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT))
        words = f"{'new' if resume is None else f'from {came_from.name}' if came_from else 'resumed'} on {world}"
        history.append(f"{words}, {number.name}")
        where = "; ".join(history)
        tally.tried += 1
        ranks = run.start(resume, world)
        disturb(run, ranks, number, rng, tally)
        codes, said = finish(ranks)
        check_part(codes, said, number, where, tally)
        if came_from is not None and run.keep > 1 and not came_from.exists() and not finished(run):
            tally.found("pruned", f"{where}: {came_from.name}, which the run came from, is gone")
        if all(code == 0 for code in codes):
            break
        tally.tell()
    if full:
        subprocess.run(["mount", "-o", "remount,size=64m", str(run.out)], check=False)
    ranks = run.start("" if run.checkpoints() else None, 1)
    while ranks[0].poll() is None:
        tally.tell_now_and_then()
        time.sleep(0.05)
    codes, said = finish(ranks)
    where = "; ".join([*history, "then to the end"])
    if codes != [0]:
        tally.found("does not go on", f"{where}: exit {codes[0]}: {said.strip()[-400:]}")
    else:
        check_end(run, where, reference, tally)
    clean(directory)


def finished(run: Run) -> bool:
    return any(f"{STEPS:08d}" in path.name for path in run.checkpoints())


def fill_up(out: Path, rng: random.Random) -> bool:
    """A disk with room for one checkpoint or two, where mounting is allowed."""
    size = f"size={rng.choice((150, 300))}k"
    mounting = ["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(out)]
    return subprocess.run(mounting, capture_output=True, check=False).returncode == 0


def clean(directory: Path) -> None:
    for out in (directory / "run" / "out", directory / "calm" / "out"):
        if out.is_mount():
            with suppress(OSError):
                subprocess.run(["umount", "-l", str(out)], capture_output=True, check=False)
