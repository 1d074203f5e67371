"""``prepare`` killed before every change it makes to the disk, or every system call, in turn, for every format; and in
a cgroup of 64 MiB.

The next try must give the files of a run that nobody disturbed, and nothing beside them.
"""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.prepare.conftest import make_documents, snapshot, write_jsonl
from tests.prepare.test_prepare_killed import gone_on_with, killed_at, killed_at_call
from tests.torture.limits import small_cgroup
from tests.torture.tally import Tally

from lowtide.corpus.request import FORMATS
from lowtide.prepare import Request, Resources, prepare


def program(rng: random.Random, directory: Path, tally: Tally, rounds: int) -> None:
    source = write_jsonl(directory / "a.jsonl", make_documents(rng.randint(20, 200), rng.randrange(99), longest=60))
    share, dedup = rng.choice((0.0, 0.3)), rng.random() < 0.5
    request = Request(format=rng.choice(FORMATS), val=share, dedup=dedup, shard_tokens=rng.choice((3000, 10**6)))
    prepare([str(source)], directory / "whole", request, Resources(workers=1))
    whole = snapshot(directory / "whole")
    killed = at_changes if rng.random() < 0.5 else at_calls
    for number, fired in killed(rng, source, directory, request, tally, rounds):
        where = f"{request}, {killed.__name__} {number}"
        tally.tried += 1
        tally.fired += fired
        try:
            other = gone_on_with(source, directory / f"{number}", request)
            if other != whole:
                tally.found("wrong files", f"{where}: {sorted(set(other) ^ set(whole))[:3] or 'other bytes'}")
        except Exception as problem:
            tally.found("does not go on", f"{where}: {type(problem).__name__}: {problem}")
        shutil.rmtree(directory / f"{number}", ignore_errors=True)
        tally.tell_now_and_then()
    in_little_memory(directory, source, tally)


Kills = Iterator[tuple[int, bool]]  # which change or call it was to be, and whether it came to that


def at_changes(rng: random.Random, source: Path, directory: Path, request: Request, tally: Tally, rounds: int) -> Kills:
    changes = killed_at(10**9, source, directory / "counted", request)
    first = rng.randrange(changes)
    for number in [(first + k) % changes for k in range(min(rounds, changes))]:
        yield number, killed_at(number, source, directory / f"{number}", request) == number


def at_calls(rng: random.Random, source: Path, directory: Path, request: Request, tally: Tally, rounds: int) -> Kills:
    number = rng.choice((1, rng.randrange(1, 600)))  # a run has some hundreds
    for _ in range(rounds):
        killed = killed_at_call(number, source, directory / f"{number}", request)
        if killed is None:
            tally.skip("prepare killed at every system call: strace is missing or may not attach here")
            return
        yield number, killed
        number = number + 1 if killed else 1


def in_little_memory(directory: Path, source: Path, tally: Tally) -> None:
    group = small_cgroup(64 << 20, f"lowtide-{directory.name}")
    if group is None:
        tally.skip("prepare in 64 MiB: no cgroup can be made here")
        return
    command = [sys.executable, "-m", "lowtide", "prepare", str(source), "-o", str(directory / "small")]
    words = ["sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh", *command]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    group.rmdir()
    if done.returncode not in (0, 1) or (done.returncode and "of memory beside what is in use" not in done.stderr):
        tally.found("died", f"prepare in 64 MiB: exit {done.returncode}: {done.stderr.strip()[-200:]}")
