"""Plain NumPy: learn which token follows which, from a file of tokens, and resume in the middle.

    python examples/numpy_loop.py                          a corpus made up on the spot
    python examples/numpy_loop.py train.bin uint16 50257   yours: file, dtype, vocabulary

One matrix of scores, softmax, gradient descent: 30 lines of model. The part that is Lowtide is five lines.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np

import lowtide


def made_up(directory: Path, name: str = "tokens.bin", count: int = 200_000, vocab: int = 64) -> Path:
    """Tokens in which 7 t + 3 follows t nine times out of ten, so that there is something to learn."""
    chance = np.random.default_rng(0)
    ids = np.empty(count, np.uint16)
    ids[0] = 1
    noise, strays = chance.random(count) < 0.1, chance.integers(0, vocab, count)
    for k in range(1, count):
        ids[k] = strays[k] if noise[k] else (7 * int(ids[k - 1]) + 3) % vocab
    ids.tofile(directory / name)
    return directory / name


class Bigram:
    """Scores of every token after every other."""

    def __init__(self, vocab: int) -> None:
        self.scores = np.zeros((vocab, vocab), np.float32)

    def learn(self, x: np.ndarray, y: np.ndarray, rate: float = 20.0) -> float:
        """One step of gradient descent; the mean loss before it, in nats per token."""
        rows = self.scores[x.reshape(-1)]
        rows -= rows.max(axis=1, keepdims=True)
        shares = np.exp(rows)
        shares /= shares.sum(axis=1, keepdims=True)
        here = np.arange(len(shares)), y.reshape(-1)
        loss = float(-np.log(shares[here]).mean())
        shares[here] -= 1
        np.add.at(self.scores, x.reshape(-1), -rate / len(shares) * shares)
        return loss


def main(path: Path, dtype: str, vocab: int) -> None:
    tokens = lowtide.open_tokens(path, dtype=dtype, vocab=vocab, budget="64MiB")
    train, val = tokens.split(val=0.05)
    feed = train.batches(32, length=64, seed=1337)
    model = Bigram(vocab)
    losses = [model.learn(x, y) for _, (x, y) in zip(range(100), feed, strict=False)]

    state = feed.state_dict()  # a few integers, safe for JSON: keep it with the weights
    resumed = train.batches(64, length=64, seed=1337)  # a new process, with twice the batch
    resumed.load_state_dict(state)
    losses += [model.learn(x, y) for _, (x, y) in zip(range(50), resumed, strict=False)]

    # Every token of val predicted once; the last batches are shorter, so they count by their size.
    held_out = [(model.learn(x, y, rate=0.0), y.size) for x, y in val.batches(64, length=64, order="sequential")]
    predicted = sum(size for _, size in held_out)
    assert predicted == len(val) - 1
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}, val {sum(loss * n for loss, n in held_out) / predicted:.3f}")
    print(feed.plan())


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
    else:
        with tempfile.TemporaryDirectory() as directory:
            main(made_up(Path(directory)), "uint16", 64)
