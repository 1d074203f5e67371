"""``prepare`` killed before every change it makes to the disk, in turn, for every format; and in a cgroup of 64 MiB.

The next try must give the files of a run that nobody disturbed, and nothing beside them.
"""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

from tests.prepare.conftest import make_documents, snapshot, write_jsonl
from tests.prepare.test_prepare_killed import killed_at
from tests.torture.limits import small_cgroup
from tests.torture.tally import Tally

from lowtide.corpus.journal import WORK
from lowtide.corpus.request import FORMATS
from lowtide.prepare import Request, Resources, prepare


def program(rng: random.Random, directory: Path, tally: Tally, rounds: int) -> None:
    source = write_jsonl(directory / "a.jsonl", make_documents(rng.randint(20, 200), rng.randrange(99), longest=60))
    share, dedup = rng.choice((0.0, 0.3)), rng.random() < 0.5
    request = Request(format=rng.choice(FORMATS), val=share, dedup=dedup, shard_tokens=rng.choice((3000, 10**6)))
    prepare([str(source)], directory / "whole", request, Resources(workers=1))
    whole = snapshot(directory / "whole")
    changes = killed_at(10**9, source, directory / "counted", request)
    first = rng.randrange(changes)
    for number in [(first + k) % changes for k in range(min(rounds, changes))]:
        output = directory / f"{number}"
        where = f"{request}, killed before change {number} of {changes}"
        tally.tried += 1
        tally.fired += killed_at(number, source, output, request) == number
        try:
            finished = request.format != "lowtide" and output.exists() and not (output / WORK).exists()
            if not finished or not any(output.iterdir()):  # its directory alone is no run
                prepare([str(source)], output, request, Resources(workers=1))
            if snapshot(output) != whole or (output / WORK).exists():
                other = sorted(set(snapshot(output)) ^ set(whole))[:3]
                tally.found("wrong files", f"{where}: {other or 'other bytes'}")
        except Exception as problem:
            tally.found("does not go on", f"{where}: {type(problem).__name__}: {problem}")
        tally.tell_now_and_then()
    in_little_memory(directory, source, tally)


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
