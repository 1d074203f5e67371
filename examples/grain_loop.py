"""Grain: a data source of rows, and Grain's own iterator state. See docs/trainers/grain.md."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, SupportsIndex

import grain
import numpy as np
from recipe import BATCH, RANK, SAVE_EVERY, STEPS, WORLD, Noted, feed_of, main

import lowtide


# lowtide: begin
class Rows:
    """Row k of the stream is item k, for ever: the order is the feed's, so Grain shuffles nothing."""

    def __init__(self, feed: lowtide.Feed) -> None:
        self.feed = feed  # of batches of one row

    def __len__(self) -> int:
        return 2**31 - 1  # Grain counts in 32 bits in places

    def __getitem__(self, index: SupportsIndex) -> dict[str, Any]:
        x, y, *_ = self.feed[int(index)]
        return {"x": np.array(x[0]), "y": np.array(y[0])}


# lowtide: end


def train(directory: Path, kind: str) -> None:
    rows = Rows(feed_of(directory, kind, batch=1))  # lowtide: begin
    dataset = grain.MapDataset.source(rows).batch(BATCH // WORLD, drop_remainder=True)
    batches = iter(dataset[RANK::WORLD].to_iter_dataset())  # lowtide: end
    saved = directory / "checkpoint.json"  # of rank 0: it serves every rank
    step = 0
    if saved.exists():
        contents = json.loads(saved.read_text())
        batches.set_state(contents["grain"])
        step = contents["step"]
    note = Noted(directory)
    scores = np.zeros(64)
    while step < STEPS:
        batch = next(batches)
        note(step, batch["x"])
        np.add.at(scores, batch["y"], 1)  # a model that counts
        step += 1
        if step % SAVE_EVERY == 0 and RANK == 0:
            saved.with_suffix(".new").write_text(json.dumps({"step": step, "grain": batches.get_state()}))
            saved.with_suffix(".new").replace(saved)


if __name__ == "__main__":
    main(train)
