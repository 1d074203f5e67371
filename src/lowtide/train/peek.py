"""The feed of a run that was trained, and where one of its steps begins: for looking at what a step was trained on.

A checkpoint remembers the run's settings and how many rows it had used at which step; the rest is arithmetic.
Steps are counted as ``metrics.jsonl`` counts them: the line of step 12 is written after the twelfth. Reads one
checkpoint's settings, no tensors.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path

from lowtide.blocks.objects import normal_address
from lowtide.errors import StateError
from lowtide.feed import Feed
from lowtide.survey.mix_plan import mix_plan
from lowtide.survey.step_rows import Read
from lowtide.train import checkpoints
from lowtide.train.data import open_data, train_feed
from lowtide.train.settings import Settings, first_corpus, layered, remembered


@dataclass(frozen=True)
class RunStep:
    """A feed, the steps of it that are one step of the run, and what they are read from."""

    feed: Feed
    steps: range
    tokens: Read
    data: str
    vocab_size: int
    checkpoint: Path
    notes: tuple[str, ...] = ()


def run_step(place: Path, step: int) -> RunStep:
    """Step ``step`` of the run in ``place``, all ranks' rows, from its newest checkpoint (or the one ``place`` is)."""
    path = checkpoints.named(place)
    known = checkpoints.glance(path)
    settings = layered(remembered(known["settings"]))
    if not 1 <= step <= settings.max_iters:
        raise ValueError(
            f"--step: expected 1 to {settings.max_iters}, as metrics.jsonl counts the steps of this run, got {step}. "
            "Use a step of the run."
        )
    _check_mixed(path, settings)
    if settings.data and normal_address(settings.data) is None and not Path(settings.data).exists():
        raise StateError(
            f"{path}: expected the corpus it names, {settings.data}, got no such file. Put it back, or look at a copy: "
            f"lowtide peek COPY --step {step - 1} --batch {settings.rows_per_step} --length {settings.block_size} "
            f"--seed {settings.seed}."
        )
    rows = settings.rows_per_step
    first = known["rows"] + (step - 1 - known["step"]) * rows
    changed = known["rows"] != known["step"] * rows
    if first < 0:
        raise StateError(
            f"{path}: expected step {step} at row 0 or later, got row {first}: the rows per step changed during the "
            "run. Name a checkpoint of that time instead of the directory."
        )
    data = open_data(settings)
    size = math.gcd(first, rows)
    feed = train_feed(replace(settings, documents=False), data, size)
    feed.load_state_dict(known["feed"])  # refuses another corpus than the one it was trained on
    note = f"rows per step changed during the run: counted from step {known['step']}, which had used {known['rows']:,}"
    steps = range(first // size, (first + rows) // size)
    tokens: Read = data.train
    if data.mixed is not None:
        tokens = {name: train for name, (train, _) in data.mixed.tokens.items()}
    corpus = first_corpus(vars(settings))
    return RunStep(feed, steps, tokens, corpus, data.vocab_size, path, (note,) if changed else ())


def _check_mixed(path: Path, settings: Settings) -> None:
    """StateError where a corpus of the run's mixture is gone."""
    for name, corpus in mix_plan(settings.mix).paths.items() if settings.mix else ():
        if normal_address(corpus) is None and not Path(corpus).exists():
            raise StateError(f"{path}: expected the corpus of {name!r}, {corpus}, got no such file. Put it back.")
