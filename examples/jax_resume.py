"""JAX: batches by DLPack, without a copy on the CPU; the feed's state beside the weights. See docs/trainers/jax.md."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from recipe import RANK, SAVE_EVERY, STEPS, VOCAB, WORLD, Noted, feed_of, main


@jax.jit
def learn(scores: Any, x: Any, y: Any) -> Any:
    def loss_of(scores: Any) -> Any:
        return -jnp.take_along_axis(jax.nn.log_softmax(scores[x]), y[..., None], axis=-1).mean()

    return scores - jax.grad(loss_of)(scores)


def train(directory: Path, kind: str) -> None:
    feed = feed_of(directory, kind, rank=RANK, world=WORLD)  # lowtide
    scores: Any = jnp.zeros((VOCAB, VOCAB))
    saved = directory / "checkpoint.json"  # of rank 0: it serves every rank
    step = 0
    if saved.exists():
        contents = json.loads(saved.read_text())
        scores, step = jnp.asarray(contents["scores"]), contents["step"]
        feed.load_state_dict(contents["feed"])  # lowtide
    note = Noted(directory)
    for x, y, *_ in feed:  # lowtide
        note(step, x)
        scores = learn(scores, jnp.from_dlpack(x), jnp.from_dlpack(y))  # lowtide
        step += 1
        if step % SAVE_EVERY == 0 and RANK == 0:
            state = {"scores": np.asarray(scores).tolist(), "step": step, "feed": feed.state_dict()}  # lowtide
            saved.with_suffix(".new").write_text(json.dumps(state))
            saved.with_suffix(".new").replace(saved)
        if step == STEPS:
            break


if __name__ == "__main__":
    main(train)
