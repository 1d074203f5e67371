"""``lowtide train``: train a small GPT on tokens from disk.

Every flag is made from a field of `Settings`. Flags win over ``--config``, which wins over what a resumed checkpoint
remembers. nanoGPT's spelling with underscores works too.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

from lowtide.cli.options import number, whole
from lowtide.cli.tables import watched

# torch's threads spin while they wait for each other, and sleep when that took too long. Spinning for long makes a run
# several times slower beside other work, not spinning at all makes an idle machine slower: so they spin for a moment.
# Read once, when torch is loaded: so before the imports below.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "5000")

from lowtide.train import checkpoints
from lowtide.train.model import choose_compute
from lowtide.train.run import run as run_training
from lowtide.train.settings import Settings, from_toml, layered, remembered
from lowtide.train.signals import StoppedEarly
from lowtide.train.telling import JsonLines, Lines, Live, RunProgress

NEWEST = "newest"
# What the reader calls a thing, and the flag that sets it here.
CALLED_HERE = {
    "length": "--block-size",
    "dtype": "--data-dtype",
    "vocab": "--vocab-size",
    "val": "--val-fraction",
    "batch": "--batch-size",
}


# A heading of --help, by the first of the settings below it.
_HEADINGS = {
    "data": "the data",
    "budget": "how it is read",
    "out_dir": "what is written while it runs",
    "batch_size": "a step",
    "n_layer": "the model",
    "learning_rate": "the optimiser",
    "eval_interval": "the run",
    "sample_tokens": "at the end",
}
_VALUES = {
    "data": "PATH",
    "val_data": "PATH",
    "mix": "NAME=PATH:WEIGHT,...",
    "data_dtype": "NAME",
    "locality": "SIZE",
    "budget": "SIZE",
    "out_dir": "DIR",
    "ledger": "FILE",
}


def add(parser: argparse.ArgumentParser) -> None:
    parser.usage = "lowtide train [options]"
    parser.description = (
        "Train a small GPT. With no arguments: about three minutes on two cores, on text that this machine already has."
    )
    parser.add_argument("--config", metavar="FILE", help="TOML file with the same names as the flags below")
    parser.add_argument(
        "--resume",
        nargs="?",
        const=NEWEST,
        metavar="CHECKPOINT",
        help="continue from the newest checkpoint of --out-dir, or from this one",
    )
    parser.add_argument(
        "--json", action="store_true", help="one JSON object per line on stdout; the last has the figures"
    )
    defaults = Settings()
    group = parser.add_argument_group()
    for setting in fields(Settings):
        if setting.name in _HEADINGS:
            group = parser.add_argument_group(_HEADINGS[setting.name])
        _add_setting(group, setting.name, getattr(defaults, setting.name), setting.metadata["help"])


def _add_setting(group: argparse._ArgumentGroup, name: str, default: str | int | float, text: str) -> None:
    shown = f"{text} (default: {default})" if default != "" and not isinstance(default, bool) else text
    options: dict[str, Any] = {"dest": name, "default": argparse.SUPPRESS}
    if isinstance(default, bool):
        options["action"] = argparse.BooleanOptionalAction
    else:
        kind, value = _KINDS[type(default)]
        options |= {"type": kind, "metavar": _VALUES.get(name, value)}
    flag = "--" + name.replace("_", "-")
    group.add_argument(flag, help=shown.replace("%", "%%"), **options)
    if "_" in name:
        group.add_argument("--" + name, help=argparse.SUPPRESS, **options)


_KINDS: dict[type, tuple[Callable[[str], object], str]] = {int: (whole, "N"), float: (number, "X"), str: (str, "NAME")}


def run(arguments: argparse.Namespace) -> int:
    settings, resume = _asked_for(arguments)
    choose_compute(settings.device, settings.dtype)
    progress: RunProgress = JsonLines() if arguments.json else Live() if watched() else Lines()
    try:
        outcome = run_training(settings, progress, resume)
    except StoppedEarly as stopped:
        print(f"lowtide train: {stopped}", file=sys.stderr)
        return 128 + stopped.number
    finally:
        progress.close()
    return 128 + outcome.stopped_by if outcome.stopped_by else 0


def _asked_for(arguments: argparse.Namespace) -> tuple[Settings, Path | None]:
    names = {setting.name for setting in fields(Settings)}
    flags = {name: value for name, value in vars(arguments).items() if name in names}
    config = from_toml(arguments.config) if arguments.config else {}
    settings = layered(config, flags)
    if arguments.resume is None:
        return settings, None
    if arguments.resume == NEWEST:
        path = checkpoints.newest(Path(settings.out_dir))
        out_dir = settings.out_dir
    else:
        path = checkpoints.named(Path(arguments.resume))
        out_dir = str(path.parent)  # continues in its own directory, unless --out-dir names another
    before = remembered(checkpoints.glance(path)["settings"])
    return layered(before, {"out_dir": out_dir}, config, flags), path
