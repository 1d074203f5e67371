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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowtide.errors import BudgetError, FormatError
from lowtide.mixture import Mixture, mix
from lowtide.tokens import Tokens, open_tokens
from lowtide.train.mix_setting import mix_plan
from lowtide.train.settings import Settings
from lowtide.windows import Windows

GPT2_VOCAB = 50_304  # GPT-2's 50,257 ids, rounded up to a multiple of 64 as nanoGPT does for faster matrix products
UNIGRAM_TOKENS = 1 << 20
_PIECE = 1 << 16


@dataclass(frozen=True)
class Mixed:
    """Both halves of a mixture; val has the weights the run begins with, whatever train changes to."""

    train: Mixture
    val: Mixture
    parts: dict[str, tuple[Tokens, Tokens]]
    weights: dict[str, float]

    def at(self, row: int, length: int) -> tuple[dict[str, float], dict[str, float]]:
        """The shares in use just before a row of the stream, and the epochs each corpus has been through by then."""
        epochs = {name: round(many, 4) for name, many in self.train.epochs(row, length=length).items()}
        return self.shares_at(max(0, row - 1)), epochs

    def shares_at(self, row: int) -> dict[str, float]:
        """The shares in use at a row of the stream."""
        found: dict[str, float] = {}
        for start, shares in self.train.schedule:
            if start <= row:
                found = {name: float(share) for name, share in shares.items()}
        return found


@dataclass(frozen=True)
class Halves:
    """Both halves of a corpus, opened; of a mixture, ``train`` and ``val`` are those of its first corpus."""

    train: Tokens
    val: Tokens
    vocab_size: int
    name: str
    files: tuple[str, ...]
    train_path: Path
    is_bytes: bool
    notes: tuple[str, ...] = ()
    mixed: Mixed | None = None

    @property
    def sizes(self) -> tuple[int, int]:
        """Train and val tokens in all."""
        pairs = [(self.train, self.val)] if self.mixed is None else self.mixed.parts.values()
        return sum(len(train) for train, _ in pairs), sum(len(val) for _, val in pairs)

    def unigram(self) -> float:
        """The loss of knowing only how often each token occurs in the val tokens."""
        if self.mixed is None:
            return unigram_entropy(self.val, self.vocab_size)
        total = sum(self.mixed.weights.values())
        counts = np.zeros(self.vocab_size)
        for name, weight in self.mixed.weights.items():
            found = _counts(self.mixed.parts[name][1], self.vocab_size)
            counts += weight / total * found / max(1, found.sum())
        return _entropy(counts)


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
    return _open_mix(settings) if settings.mix else _open_one(Path(settings.data), settings)


def _open_mix(settings: Settings) -> Halves:
    """Every corpus with both its halves, and the mixtures of them that the plan says."""
    plan = mix_plan(settings.mix)
    opened = {name: _open_one(Path(path), settings) for name, path in plan.paths.items()}
    first, *others = opened.values()
    for name, one in opened.items():
        if one.vocab_size != first.vocab_size:
            raise FormatError(
                f"{one.train.store.where}: expected the {first.vocab_size:,} ids of the other corpora for {name!r}, "
                f"got {one.vocab_size:,}. Prepare them with one tokenizer, or state --vocab-size."
            )
    budget = None if settings.budget == "auto" else settings.budget
    known: set[str] = set()

    def joining(weights: dict[str, float]) -> dict[str, Any]:
        new = {
            name: (_as_mixed(opened[name].train, settings), weight)
            for name, weight in weights.items()
            if name not in known
        }
        known.update(new)
        return {**weights, **new}

    train = mix(joining(plan.first), then={row: joining(plan.then[row]) for row in plan.then}, budget=budget)
    taking = {name: weight for name, weight in plan.first.items() if weight}
    val = mix(
        {
            name: (_as_mixed(opened[name].val, replace(settings, cut="stride")), weight)
            for name, weight in taking.items()
        },
        exhausted="stop",
        budget=budget,
    )
    parts = {name: (one.train, one.val) for name, one in opened.items()}
    files = tuple(dict.fromkeys(file for one in opened.values() for file in one.files))
    name = ", ".join(f"{name} {path}" for name, path in plan.paths.items())
    notes = (*first.notes, *(note for one in others for note in one.notes if note not in first.notes))
    return replace(first, name=name, files=files, notes=notes, mixed=Mixed(train, val, parts, taking))


def _as_mixed(tokens: Tokens, settings: Settings) -> Tokens | Windows:
    """What is mixed: tokens, or windows where rows are packed or documents kept apart."""
    if settings.cut == "stride" and not settings.documents:
        return tokens
    return tokens.windows(settings.block_size, cut=settings.cut, documents=True)


def _open_one(path: Path, settings: Settings) -> Halves:
    if settings.val_data:
        return _described(_open(path, settings), _open(Path(settings.val_data), settings), path, settings)
    pair = _nanogpt_pair(path)
    if pair is not None:
        return _described(_open(pair[0], settings), _open(pair[1], settings), pair[0], settings)
    train, val = _open(path, settings).split(val=settings.val_fraction)
    return _described(train, val, path, settings)


def unigram_entropy(tokens: Tokens, vocab_size: int) -> float:
    """Nats a token for a model that knows only counts, from the first `UNIGRAM_TOKENS` tokens."""
    return _entropy(_counts(tokens, vocab_size))


def _counts(tokens: Tokens, vocab_size: int) -> NDArray[np.int64]:
    counts = np.zeros(vocab_size, dtype=np.int64)
    end = min(len(tokens), UNIGRAM_TOKENS)
    for start in range(0, end, _PIECE):
        counts += np.bincount(tokens[start : min(end, start + _PIECE)], minlength=vocab_size)
    return counts


def _entropy(counts: NDArray[Any]) -> float:
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
        eot=None if settings.eot < 0 else settings.eot,
        bos=None if settings.bos < 0 else settings.bos,
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
    return Halves(train, val, vocab, settings.data or str(train_path), tuple(files), train_path, is_bytes, notes)
