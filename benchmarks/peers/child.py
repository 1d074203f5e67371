"""One job of one peer in a process of its own: ``python -m benchmarks.peers.child '{"peer": ..., "job": ...}'``.

The parent speaks through the standard streams: the child says ``ready`` after its imports and begins when told to.
"""

from __future__ import annotations

import itertools
import json
import os
import pickle
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.arrays import ARRAYS
from benchmarks.peers.corpora import CORPORA
from benchmarks.peers.ledger import BATCH, LENGTH, starts_of
from benchmarks.peers.loader import Batch, Peer
from benchmarks.peers.watch import read_bytes_of_tree, seconds_of_tree

LOOK_EVERY = 0.01  # seconds between looks at how much came from the device
PEERS: dict[str, type[Peer]] = {peer.__name__: peer for peer in (*ARRAYS, *CORPORA)}


def checked(batch: Batch, rows: int) -> tuple[Any, Any]:
    """As arrays; every peer gives the same: int64, contiguous, y one token ahead of x."""
    x, y = (np.asarray(each) for each in batch)
    assert x.shape == y.shape == (rows, LENGTH), f"{x.shape} and {y.shape}, not {(rows, LENGTH)}"
    assert x.dtype == y.dtype == np.int64, f"{x.dtype} and {y.dtype}"
    assert x.flags.c_contiguous and y.flags.c_contiguous
    return x, y


def endless(peer: Peer) -> Iterator[Batch]:
    """Epoch after epoch; opening again is the peer's own cost."""
    while True:
        for batch in peer.batches():
            if len(batch[0]) == BATCH:
                yield batch
        peer.taken = 0


def speed(peer: Peer, job: dict[str, Any]) -> dict[str, Any]:
    """Windows per second for some seconds, or until ``most_read`` bytes came from the device; the first batch is
    start-up."""
    begin = time.perf_counter()
    batches = endless(peer)
    x, y = checked(next(batches), BATCH)
    first = time.perf_counter() - begin
    assert (starts_of(x) >= 0).all() and (x[:, 1:] == y[:, :-1]).all(), "other tokens than were written"
    untimed = time.perf_counter() + job["before"]
    while time.perf_counter() < untimed:
        next(batches)
    rows, cpu, came, start = 0, seconds_of_tree(os.getpid()), read_bytes_of_tree(os.getpid()), time.perf_counter()
    until, looked, most = start + job["seconds"], start, job["most_read"]
    while (now := time.perf_counter()) < until:
        if most is not None and now > looked + LOOK_EVERY:
            looked = now
            if read_bytes_of_tree(os.getpid()) - came > most:
                break
        next(batches)
        rows += BATCH
    seconds = time.perf_counter() - start
    used, read = seconds_of_tree(os.getpid()) - cpu, read_bytes_of_tree(os.getpid()) - came
    return {
        "windows": rows / seconds,
        "useful": rows * (LENGTH + 1) * 2,
        "cores": used / seconds,
        "read": read / max(1, rows * (LENGTH + 1) * 2),
        "first": first,
        "index": peer.index_bytes(),
    }


def epoch(peer: Peer, job: dict[str, Any]) -> dict[str, Any]:
    """Every batch up to the end of the epoch, or as many as asked for; where each row began; the state on the way."""
    begin, starts, first = time.perf_counter(), [], 0.0
    for number, batch in enumerate(itertools.islice(peer.batches(), job["most"]), 1):
        first = first or time.perf_counter() - begin
        x, y = (np.asarray(each) for each in batch)
        found = starts_of(x)
        starts.append(np.where((x[:, 1:] == y[:, :-1]).all(axis=1), found, -1))
        if number == job.get("state_after"):
            Path(job["state_to"]).write_bytes(pickle.dumps(peer.state()))
    np.save(job["starts_to"], np.concatenate(starts) if starts else np.empty(0, np.int64))
    return {"first": first}


def truncated(peer: Peer, job: dict[str, Any]) -> dict[str, Any]:
    """The files are cut to half while they are open: what do the rest of the epoch's batches say?"""
    batches = peer.batches()
    for _ in range(8):
        next(batches)
    for path in Path(job["place"]).rglob("*"):
        if path.is_file() and path.stat().st_size > 1 << 14 and "cache" not in str(path.relative_to(job["place"])):
            os.truncate(path, path.stat().st_size // 2)
    wrong, rows = 0, 8 * BATCH
    try:
        for batch in itertools.islice(batches, job["most"] - 8):
            x = np.asarray(batch[0])
            wrong, rows = wrong + int((starts_of(x) < 0).sum()), rows + len(x)
    except Exception as error:
        kind = type(error)
        own = "" if kind.__module__ == "builtins" else f"{kind.__module__.split('.')[0]}."
        return {"said": f"{own}{kind.__name__}", "message": str(error)[:300], "wrong": wrong, "rows": rows}
    return {"said": "", "wrong": wrong, "rows": rows}


def convert(peer: Peer, job: dict[str, Any]) -> dict[str, Any]:
    begin = time.perf_counter()
    peer.convert(Path(job["tokens"]))
    return {"seconds": time.perf_counter() - begin}


JOBS = {"speed": speed, "epoch": epoch, "truncated": truncated, "convert": convert}


def main() -> None:
    job = json.loads(sys.argv[1])
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a peer prints is not an answer
    state = pickle.loads(Path(job["state"]).read_bytes()) if job.get("state") else None
    peer = PEERS[job["peer"]](Path(job["place"]), job.get("rank", 0), job.get("world", 1), state)
    peer.imports()
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(
            1
        )  # as DataLoader does in its workers: for copies this small, waking a second thread costs more
    print("ready", file=answers, flush=True)
    sys.stdin.readline()
    print(json.dumps(JOBS[job["job"]](peer, job)), file=answers, flush=True)
    sys.stdin.readline()  # the parent looks once more before the process goes
    os._exit(0)  # some have threads that outlive their loader


if __name__ == "__main__":
    main()
