"""A feed in hostile surroundings: a signal handler that saves state, no threads to be had, hardly a descriptor, a full
disk for the index, and another user who planted links, FIFOs and false indexes beside the data.

What comes must be the batches of a calm run, or an error of ours; never a hang, a crash, or a file of somebody else's
that was written to. Each is tried in a forked child.
"""

from __future__ import annotations

import os
import random
import resource
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from tests.torture.changes import in_child
from tests.torture.data import fingerprint
from tests.torture.tally import Tally

import lowtide

NOBODY = 65534
EOT = 7


def batches(path: Path, seen: Callable[[Any], None] = lambda _: None) -> list[int]:
    with lowtide.open_tokens(str(path), dtype="uint16", eot=EOT) as tokens:
        feed = tokens.windows(64, documents=True).batches(8, seed=3)
        seen(feed)
        return [fingerprint(next(feed)[:2]) for _ in range(20)]


def handler_saves_state(path: Path, victim: Path) -> list[int]:
    def begin(feed: Any) -> None:
        signal.signal(signal.SIGALRM, lambda *_: feed.state_dict())
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)

    try:
        return batches(path, begin)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def no_threads(path: Path, victim: Path) -> list[int]:
    resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
    if os.getuid() == 0:  # the limit does not bind root
        os.setuid(NOBODY)
    return batches(path)


def few_descriptors(path: Path, victim: Path) -> list[int]:
    used = len(list(Path("/proc/self/fd").iterdir()))
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 6, used + 6))
    return batches(path)


def full_disk(path: Path, victim: Path) -> list[int]:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64))
    return batches(path)


def planted(path: Path, victim: Path, how: str) -> list[int]:
    """What a stranger could put where an index is kept: under every name that a calm run used."""
    calm = path.with_name("calm")
    for name in [one.relative_to(calm) for one in calm.rglob("*") if ".lowtide" in one.parts and one.is_file()]:
        for place in (path.parent / name, path.parent / f"{name}.partial", path.parent / f"{name}.lock"):
            place.parent.mkdir(parents=True, exist_ok=True)
            os.chown(place.parent, NOBODY, NOBODY)
            if how == "fifo":
                os.mkfifo(place)
            elif how == "link":
                place.symlink_to(victim)
            else:
                place.write_bytes(os.urandom(4096))
            os.chown(place, NOBODY, NOBODY, follow_symlinks=False)
    return batches(path)


TRIES: dict[str, Callable[[Path, Path], list[int]]] = {
    "a handler saves state": handler_saves_state,
    "no threads": no_threads,
    "few descriptors": few_descriptors,
    "a full disk": full_disk,
    "planted links": partial(planted, how="link"),
    "planted fifos": partial(planted, how="fifo"),
    "planted indexes": partial(planted, how="index"),
}


def outcome(work: Callable[[Path, Path], list[int]], path: Path, victim: Path, expected: list[int]) -> str:
    before = victim.read_bytes()
    try:
        found = work(path, victim)
    except (lowtide.LowtideError, OSError) as problem:
        if not isinstance(problem, lowtide.LowtideError) and problem.filename is None and ":" not in str(problem):
            return f"untyped error\n{type(problem).__name__}: {problem}"
        return ""
    if victim.read_bytes() != before:
        return "written through\nanother file was written"
    return "" if found == expected else "wrong rows\nother batches than a calm run"


def program(rng: random.Random, directory: Path, tally: Tally, rounds: int) -> None:
    ids = np.random.default_rng(rng.randrange(99)).integers(0, 300, 100_000).astype(np.uint16)
    calm = directory / "calm" / "calm"
    calm.mkdir(parents=True)
    directory.chmod(0o755)
    ids.tofile(calm / "data.bin")
    expected = batches(calm / "data.bin")
    for number in range(rounds):
        name = rng.choice(list(TRIES))
        place = directory / f"{number}"
        place.mkdir()
        place.chmod(0o1777)
        ids.tofile(place / "data.bin")
        if name.startswith("planted"):
            if os.getuid() != 0:
                tally.skip("files of another user: only root can make them")
                continue
            (place / "calm").symlink_to(calm)
        victim = place / "private"
        victim.write_text("mine")
        tally.tried += 1
        tally.fired += 1
        ended, said = in_child(partial(outcome, TRIES[name], place / "data.bin", victim, expected))
        if ended == -999:
            tally.found("hung", f"{name}: neither batches nor an error")
        elif ended:
            kind, _, words = said.strip().partition("\n")
            tally.found(kind if ended > 0 else "died", f"{name}: {words or ended}"[-600:])
        tally.tell_now_and_then()
