"""What a run reads: its train and val tokens, the feeds made of them, and the corpus of a run that was given none.

Whatever ``--data`` or ``--mix`` names, the rest of the trainer sees two `Tokens` and a vocabulary, a step gets one
`TrainBatch`, and the val loss is taken over the same windows for every cut, so that runs can be compared. Without
``--data`` the corpus is this machine's own text, prepared once and written into the settings, so that a checkpoint
names it. Its budget is an eighth of the corpus, or `LEAST_BUDGET`: a kept mapping cannot stay below that, as the
control shows.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from lowtide.errors import FormatError, discreet
from lowtide.feed import Feed
from lowtide.mixture import Mixture, mix
from lowtide.order.locality import locality_text
from lowtide.prepare import Control, kept_memmap, machine_corpus
from lowtide.prepare.job import Status
from lowtide.prepare.machine_text import CORPUS_PREFIX, WORDS_NEED, has_words
from lowtide.survey.mix_plan import mix_plan
from lowtide.tokens import Tokens, open_tokens
from lowtide.train.settings import Settings
from lowtide.units import MIB, format_size
from lowtide.windows import Windows

GPT2_VOCAB = 50_304  # GPT-2's 50,257 ids, rounded up to a multiple of 64 as nanoGPT does for faster matrix products
UNIGRAM_TOKENS = 1 << 20
_COUNTED_AT_ONCE = 1 << 16
BUDGET_SHARE = 8  # the budget is this share of the corpus
LEAST_BUDGET = 2 * MIB  # torch itself moves by almost 1 MiB while it trains; that must not decide the verdict
_SECONDS_BETWEEN_NOTES = 10.0


@dataclass(frozen=True)
class Mixed:
    """The train and the val part of a mixture; val has the weights the run begins with, whatever train changes to."""

    train: Mixture
    val: Mixture
    tokens: dict[str, tuple[Tokens, Tokens]]  # train and val of each corpus
    weights: dict[str, float]

    def at(self, row: int, length: int) -> tuple[dict[str, float], dict[str, float]]:
        """The shares in use just before a row of the stream, and the epochs each corpus has been through by then."""
        epochs = {name: round(many, 4) for name, many in self.train.epochs(row, length=length).items()}
        begun = [shares for start, shares in self.train.schedule if start <= max(0, row - 1)]
        return {name: float(share) for name, share in begun[-1].items()}, epochs


@dataclass(frozen=True)
class RunData:
    """The train and the val part of a corpus, opened; of a mixture those of its first corpus, and ``mixed``."""

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
        pairs = [(self.train, self.val)] if self.mixed is None else self.mixed.tokens.values()
        return sum(len(train) for train, _ in pairs), sum(len(val) for _, val in pairs)

    def unigram(self) -> float:
        """The loss of knowing only how often each token occurs in the val tokens."""
        mixed = [(self.val, 1.0)]
        if self.mixed is not None:
            mixed = [(self.mixed.tokens[name][1], weight) for name, weight in self.mixed.weights.items()]
        shares = np.zeros(self.vocab_size)
        for val, weight in mixed:
            found = _counts(val, self.vocab_size)
            shares += weight * found / max(1, found.sum())
        shares = shares[shares > 0] / shares.sum()
        return max(0.0, float(-(shares * np.log(shares)).sum())) if len(shares) else math.nan


def open_data(settings: Settings) -> RunData:
    """Open what the settings name."""
    return _open_mix(settings) if settings.mix else _open_one(Path(settings.data), settings)


def _open_mix(settings: Settings) -> RunData:
    """Every corpus with both its parts, and the mixtures of them that the plan says."""
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
    cut = {name: _as_mixed(one.train, settings) for name, one in opened.items()}
    train = mix(plan.joined(cut), then=plan.joined_later(cut), budget=budget)
    taking = {name: weight for name, weight in plan.first.items() if weight}
    at_stride = replace(settings, cut="stride")
    parts = {name: (_as_mixed(opened[name].val, at_stride), weight) for name, weight in taking.items()}
    val = mix(parts, exhausted="stop", budget=budget)
    tokens = {name: (one.train, one.val) for name, one in opened.items()}
    files = tuple(dict.fromkeys(file for one in opened.values() for file in one.files))
    name = ", ".join(f"{name} {discreet(path)}" for name, path in plan.paths.items())
    notes = (*first.notes, *(note for one in others for note in one.notes if note not in first.notes))
    return replace(first, name=name, files=files, notes=notes, mixed=Mixed(train, val, tokens, taking))


def _as_mixed(tokens: Tokens, settings: Settings) -> Tokens | Windows:
    """What is mixed: tokens, or windows where rows are packed or documents kept apart."""
    if settings.cut == "stride" and not settings.documents:
        return tokens
    return tokens.windows(settings.block_size, cut=settings.cut, documents=True)


def _open_one(path: Path, settings: Settings) -> RunData:
    """``--val-data``, else the val part of a directory that holds one, else a split."""
    train = _open(path, settings)
    held_out = Path(settings.val_data) if settings.val_data else path
    if "val" in (_open(held_out, settings) if settings.val_data else train).layout.other_parts:
        return _described(train, _open(held_out, settings, part="val"), path, settings)
    if settings.val_data:
        return _described(train, _open(held_out, settings), path, settings)
    return _described(*train.split(val=settings.val_fraction), path, settings)


def _counts(tokens: Tokens, vocab_size: int) -> NDArray[np.int64]:
    counts = np.zeros(vocab_size, dtype=np.int64)
    end = min(len(tokens), UNIGRAM_TOKENS)
    for start in range(0, end, _COUNTED_AT_ONCE):
        counts += np.bincount(tokens[start : min(end, start + _COUNTED_AT_ONCE)], minlength=vocab_size)
    return counts


def _open(path: Path, settings: Settings, part: str | None = None) -> Tokens:
    return open_tokens(
        path,
        part=part,
        dtype=settings.data_dtype or None,
        eot=None if settings.eot < 0 else settings.eot,
        bos=None if settings.bos < 0 else settings.bos,
        vocab=settings.vocab_size or None,
        budget=settings.budget,
        strategy=settings.strategy,
        engine=settings.engine,
        cache=settings.cache,
    )


def _described(train: Tokens, val: Tokens, train_path: Path, settings: Settings) -> RunData:
    notes: tuple[str, ...] = ()
    is_bytes = train.dtype == np.uint8
    known = settings.vocab_size or train.vocab or (256 if is_bytes else 0)
    if not known:
        notes += (f"the data does not say its vocabulary: taking {GPT2_VOCAB:,} ids; --vocab-size sets it",)
    vocab = train.vocab = val.vocab = known or GPT2_VOCAB  # an id beyond it is refused at the batch that has it
    files = {extent.path: None for tokens in (train, val) for extent in tokens.layout.extents}
    name = discreet(settings.data or str(train_path))
    return RunData(train, val, vocab, name, tuple(files), train_path, is_bytes, notes)


# The feeds


class TrainBatch(NamedTuple):
    """One pass's rows. ``documents`` keeps attention inside them; ``counted`` says which targets are learned."""

    x: Tensor
    y: Tensor
    documents: Tensor | None = None
    counted: Tensor | None = None


def train_feed(settings: Settings, data: RunData, rows: int, rank: int | None = None, world: int | None = None) -> Feed:
    """Rows to train on, in the order the settings fix."""
    seed, locality = settings.seed, locality_text(settings.locality) if settings.locality else None
    with_docs = settings.documents or settings.cut == "packed"  # padding must not be learned
    if data.mixed is not None:
        length = None if with_docs else settings.block_size  # windows have their length already
        return data.mixed.train.batches(rows, length=length, seed=seed, locality=locality, rank=rank, world=world)
    windows = data.train.windows(settings.block_size, cut=settings.cut, documents=with_docs)
    return windows.batches(rows, seed=seed, locality=locality, rank=rank, world=world)


def val_feed(settings: Settings, data: RunData) -> Feed:
    """Val windows at a stride, in order."""
    if data.mixed is not None:
        length = None if settings.documents else settings.block_size
        return data.mixed.val.batches(settings.batch_size, length=length, order="sequential")
    windows = data.val.windows(settings.block_size, documents=settings.documents)
    return windows.batches(settings.batch_size, order="sequential")


def as_batch(given: Any, settings: Settings, change: Callable[[Any], Tensor]) -> TrainBatch:
    """What a feed gave, each array changed to a tensor where it is none yet."""
    x, y, *docs = given
    if not docs:
        return TrainBatch(change(x), change(y))
    documents = change(docs[0].ids) if settings.documents else None
    return TrainBatch(change(x), change(y), documents, change(docs[0].loss_mask))


# A corpus for a run that was given none


def with_corpus(settings: Settings, note: Callable[[str], None]) -> Settings:
    """The same settings with a corpus: as they are, or with this machine's text, prepared now unless it is there."""
    if settings.data or settings.mix:
        return settings
    if not has_words():
        note(f"a byte is a token here: {WORDS_NEED} is missing; pip install 'lowtide[prepare]'")
    made = machine_corpus(tokens=settings.corpus_tokens, progress=_PreparationNotes(note))
    if made.made:
        note(f"prepared {made.tokens:,} tokens ({format_size(made.bytes)}) of this machine's text into\n  {made.path}")
    budget = own_budget(made.bytes) if settings.budget == "auto" else settings.budget
    return replace(settings, data=str(made.path), budget=budget)


def own_budget(corpus_bytes: int) -> str:
    """The budget of a run on this machine's text, in whole MiB."""
    return f"{max(LEAST_BUDGET, corpus_bytes // BUDGET_SHARE) // MIB}MiB"


def control_of(settings: Settings, corpus: Path) -> Control | None:
    """What one pass over the train tokens through kept maps holds, where the settings ask for it."""
    if settings.mix:
        return None
    is_own = corpus.name.startswith(CORPUS_PREFIX) or corpus.parent.name.startswith(CORPUS_PREFIX)
    if settings.control == "no" or (settings.control == "auto" and not is_own):
        return None
    return kept_memmap(corpus, length=settings.block_size, dtype=settings.data_dtype or None)


class _PreparationNotes:
    """Says how far the preparation is: once for each stage, and every few seconds."""

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note = note
        self._stage = ""
        self._next = 0.0

    def __call__(self, now: Status) -> None:
        if now.stage == self._stage and time.monotonic() < self._next:
            return
        self._stage, self._next = now.stage, time.monotonic() + _SECONDS_BETWEEN_NOTES
        share = f": {now.done / MIB:.0f} of {now.total / MIB:.0f} MiB, {now.tokens:,} tokens" if now.done else ""
        self._note(f"preparing this machine's text, once ({now.stage}){share}")
