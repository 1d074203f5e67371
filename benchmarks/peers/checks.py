"""What a peer promises, tried on 12,352 windows: each one once, resumed, on other ranks, with its files cut short."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.peers import environments, jobs
from benchmarks.peers.ledger import BATCH, LENGTH, account, resumed_elsewhere
from benchmarks.peers.loader import Peer

MIDDLE = 96  # batches
LIMIT = 60.0


def promises(peer: type[Peer]) -> dict[str, Any]:
    """The columns that need no speed; what could not be had says why."""
    place = environments.place_of(peer, "small")
    scratch = environments.HOME / "scratch" / peer.__name__
    scratch.mkdir(parents=True, exist_ok=True)
    tokens = environments.WINDOWS["small"] * LENGTH + 1
    rows = peer(place).rows_of_epoch(tokens)
    batches = -(-rows // BATCH)
    found: dict[str, Any] = {"truncated": cut_short(peer, place, scratch, batches)}
    state = scratch / "state"
    at_start = {} if peer.resumes == "-" else {"state_after": MIDDLE, "state_to": str(state)}
    try:
        fresh, starts = _epoch(peer, place, scratch / "fresh.npy", most=batches, **at_start)
    except jobs.JobError as failed:
        return {**found, "once": str(failed)}
    found["once"] = str(account(starts, rows, BATCH)) if peer.epoch else _drawn(starts, rows)
    if peer.resumes == "-":
        return found
    return {**found, **resumed(peer, place, scratch, starts, fresh["first"], batches)}


def resumed(
    peer: type[Peer], place: Path, scratch: Path, starts: NDArray[np.int64], first: float, batches: int
) -> dict[str, Any]:
    """From the middle: as it was, and dealt to two ranks."""
    rest, left = starts[MIDDLE * BATCH :], batches - MIDDLE
    found: dict[str, Any] = {"at_start": first}
    state = {"state": str(scratch / "state"), "most": left}
    try:
        again, here = _epoch(peer, place, scratch / "again.npy", **state)
        found |= {"at_middle": again["first"], "resume": "exact" if np.array_equal(here, rest) else "other rows"}
    except jobs.JobError as failed:
        found["resume"] = failed.how
    with ThreadPoolExecutor(2) as both:
        ranks = [
            both.submit(_epoch, peer, place, scratch / f"{rank}.npy", rank=rank, world=2, **state) for rank in (0, 1)
        ]
    try:
        found["ranks"] = resumed_elsewhere(rest, [rank.result()[1] for rank in ranks], BATCH)
    except jobs.JobError as failed:
        found |= {"ranks": "refused" if failed.how == "failed" else failed.how, "ranks_said": failed.heard}
    return found


def cut_short(peer: type[Peer], place: Path, scratch: Path, batches: int) -> str:
    copy = scratch / "data"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(place, copy)
    try:
        said = jobs.run(peer, "truncated", copy, limit=LIMIT, most=batches)
    except jobs.JobError as failed:
        return "hangs" if failed.how.startswith("no answer") else failed.how
    finally:
        shutil.rmtree(copy, ignore_errors=True)
    return told(said, batches * BATCH)


def told(said: dict[str, Any], rows: int) -> str:
    """What a reader whose file was cut has noticed, in words."""
    wrong = f"{said['wrong']:,} wrong windows" if said["wrong"] else ""
    if said["said"]:
        return f"{wrong}, then {said['said']}" if wrong else str(said["said"])
    if wrong:
        return f"{wrong}, no error"
    return "not noticed" if said["rows"] > rows - BATCH else f"ends early ({said['rows']:,} of {rows:,} rows), no error"


def _epoch(peer: type[Peer], place: Path, to: Path, **job: Any) -> tuple[dict[str, Any], NDArray[np.int64]]:
    answer = jobs.run(peer, "epoch", place, limit=LIMIT, starts_to=str(to), **job)
    return answer, np.load(to)


def _drawn(starts: NDArray[np.int64], rows: int) -> str:
    covered = np.zeros(rows * LENGTH + 1, bool)
    for start in starts:
        covered[start : start + LENGTH] = True
    return f"no: {1 - covered.mean():.0%} of the tokens never came"
