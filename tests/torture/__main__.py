"""``python -m tests.torture``: the whole run, or one program of it."""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import faulthandler
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

from tests.torture.campaigns import CAMPAIGNS
from tests.torture.runner import STACKS, torture
from tests.torture.tally import Tally


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.torture", description="Seeded faults until time is up.")
    minutes = float(os.environ.get("TORTURE_MINUTES") or 10)
    parser.add_argument("--minutes", type=float, default=minutes, help="default: $TORTURE_MINUTES, or 10")
    parser.add_argument(
        "--seed", type=int, default=None, help="program k of a campaign has seed N + k; default: the time"
    )
    parser.add_argument(
        "--only",
        action="append",
        choices=list(CAMPAIGNS),
        metavar="NAME",
        help=", ".join(f"{c.name}: {c.what}" for c in CAMPAIGNS.values()),
    )
    parser.add_argument("--programs", type=int, default=None, help="this many of each campaign, instead of a time")
    parser.add_argument("--rounds", type=int, default=None, help="faults per program, instead of the campaign's own")
    parser.add_argument("--program", choices=list(CAMPAIGNS), help=argparse.SUPPRESS)  # what the runner starts
    parser.add_argument("--directory", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def one_program(name: str, seed: int, rounds: int, directory: Path) -> None:
    """In this process; its counts go to stdout."""
    # On a fatal signal only the thread that met it: walking the frames of threads that run on may itself end in
    # SIGSEGV, which would hide the signal that came. All of them where the runner asks, for nothing moves any more.
    faulthandler.enable(all_threads=False)
    faulthandler.register(STACKS, all_threads=True)
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: a runner that is killed leaves nothing running
    tally = Tally()
    tally.tell()
    CAMPAIGNS[name].module.program(random.Random(f"{name} {seed}"), directory, tally, rounds)
    tally.tell()


def main() -> int:
    asked = arguments()
    seed = int(time.time()) if asked.seed is None else asked.seed
    if asked.program:
        directory = asked.directory or Path(tempfile.mkdtemp(prefix="torture-"))
        one_program(asked.program, seed, asked.rounds or CAMPAIGNS[asked.program].rounds, directory)
        return 0
    names = asked.only or list(CAMPAIGNS)
    print(
        f"seed {seed}, {asked.programs or 'as many programs as fit into'}"
        f"{' programs' if asked.programs else f' {asked.minutes:g} minutes'}: {', '.join(names)}",
        flush=True,
    )
    return 1 if torture(names, seed, asked.minutes, asked.programs, asked.rounds) else 0


if __name__ == "__main__":
    sys.exit(main())
