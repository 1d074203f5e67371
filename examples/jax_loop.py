"""JAX: the same loop with a compiled step; batches go over as int32, which is what JAX counts with.

    python examples/jax_loop.py                          a corpus made up on the spot
    python examples/jax_loop.py train.bin uint16 50257   yours: file, dtype, vocabulary

On the CPU ``jnp.asarray`` may take the batch as it lies, without a copy. That is safe: a batch stays what it is until
the last array that sees it is gone, and only then its buffer is used again.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
from numpy_loop import made_up

import lowtide


def loss_of(scores: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
    shares = jax.nn.log_softmax(scores[x])
    return -jnp.take_along_axis(shares, y[..., None], axis=-1).mean()


@jax.jit
def learn(scores: jax.Array, x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
    loss, slope = jax.value_and_grad(loss_of)(scores, x, y)
    return scores - 20.0 * slope, loss


def main(path: Path, dtype: str, vocab: int) -> None:
    tokens = lowtide.open_tokens(path, dtype=dtype, vocab=vocab, budget="64MiB")
    # One process of several: rank=jax.process_index(), world=jax.process_count(); the batch stays the global one.
    feed = tokens.batches(32, length=64, seed=1337, dtype="int32")
    scores = jnp.zeros((vocab, vocab))
    losses = []
    for _, (x, y) in zip(range(150), feed, strict=False):
        scores, loss = learn(scores, jnp.asarray(x), jnp.asarray(y))
        losses.append(loss)
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f} on {jax.default_backend()}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
    else:
        with tempfile.TemporaryDirectory() as directory:
            main(made_up(Path(directory)), "uint16", 64)
