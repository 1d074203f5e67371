"""What a run reads: the train tokens, the val tokens, and what is known about them.

One idea: ``--data`` may be a token file, a corpus, a directory with a corpus in ``train`` and one in ``val`` (as
``lowtide prepare --val`` writes it), or nanoGPT's directory with ``train.bin`` and ``val.bin``; whichever it is, the
rest of the trainer sees two `Tokens` and a vocabulary. Nothing but headers is read here, apart from the first
`UNIGRAM_TOKENS` val tokens, whose entropy is the loss of a model that knows only how often each token occurs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lowtide.errors import BudgetError, FormatError
from lowtide.tokens import Tokens, open_tokens
from lowtide.train.settings import Settings

GPT2_VOCAB = 50_304  # GPT-2's 50,257 ids, rounded up to a multiple of 64 as nanoGPT does for faster matrix products
UNIGRAM_TOKENS = 1 << 20
_PIECE = 1 << 16


@dataclass(frozen=True)
class Halves:
    """Both halves of a corpus, opened."""

    train: Tokens
    val: Tokens
    vocab_size: int
    name: str
    files: tuple[str, ...]
    train_path: Path
    is_bytes: bool
    notes: tuple[str, ...] = ()


# What the reader calls a thing, and the flag that sets it here.
_FLAGS = {"length=": "--block-size", "dtype=": "--data-dtype", "budget=": "--budget", "vocab=": "--vocab-size"}


@contextmanager
def in_flags() -> Iterator[None]:
    """Add to the reader's errors which flag sets the value they name."""
    try:
        yield
    except (FormatError, BudgetError) as problem:
        flags = [f"{name[:-1]} is {flag}" for name, flag in _FLAGS.items() if name in str(problem)]
        if not flags:
            raise
        raise type(problem)(f"{problem} Here {', '.join(flags)}.") from problem


def open_data(settings: Settings) -> Halves:
    """Open what the settings name."""
    with in_flags():
        return _open_data(settings)


def _open_data(settings: Settings) -> Halves:
    path = Path(settings.data)
    if settings.val_data:
        return _described(_open(path, settings), _open(Path(settings.val_data), settings), path, settings)
    pair = _nanogpt_pair(path)
    if pair is not None:
        return _described(_open(pair[0], settings), _open(pair[1], settings), pair[0], settings)
    train, val = _open(path, settings).split(val=settings.val_fraction)
    return _described(train, val, path, settings)


def unigram_entropy(tokens: Tokens, vocab_size: int) -> float:
    """Nats a token for a model that knows only counts, from the first `UNIGRAM_TOKENS` tokens."""
    counts = np.zeros(vocab_size, dtype=np.int64)
    end = min(len(tokens), UNIGRAM_TOKENS)
    for start in range(0, end, _PIECE):
        counts += np.bincount(tokens[start : min(end, start + _PIECE)], minlength=vocab_size)
    shares = counts[counts > 0] / counts.sum()
    return max(0.0, float(-(shares * np.log(shares)).sum())) if len(shares) else math.nan


def _nanogpt_pair(path: Path) -> tuple[Path, Path] | None:
    """``train.bin`` and ``val.bin`` of a directory, or its ``train`` and ``val`` directories, when it has both."""
    for train, val in (("train.bin", "val.bin"), ("train", "val")):
        if (path / train).exists() and (path / val).exists():
            return path / train, path / val
    return None


def _open(path: Path, settings: Settings) -> Tokens:
    return open_tokens(
        path,
        dtype=settings.data_dtype or None,
        vocab=settings.vocab_size or None,
        budget=settings.budget,
        strategy=settings.strategy,
        engine=settings.engine,
        cache=settings.cache,
    )


def _described(train: Tokens, val: Tokens, train_path: Path, settings: Settings) -> Halves:
    notes: tuple[str, ...] = ()
    is_bytes = train.dtype == np.uint8
    known = settings.vocab_size or train.vocab or (256 if is_bytes else 0)
    if not known:
        notes += (f"the data does not say its vocabulary: taking {GPT2_VOCAB:,} ids; --vocab-size sets it",)
    vocab = train.vocab = val.vocab = known or GPT2_VOCAB  # an id beyond it is refused at the batch that has it
    files = {extent.path: None for tokens in (train, val) for extent in tokens.layout.extents}
    return Halves(train, val, vocab, settings.data, tuple(files), train_path, is_bytes, notes)
