"""The corpus of a run that was given none: this machine's own text, and the budget that makes it a fair test.

One idea: what the run reads is decided before anything else and written into its settings, so that a checkpoint names
its corpus and going on, sampling and peeking find it again. The budget is an eighth of the corpus: reading all of it
through a map that is kept cannot stay below that, as the control shows. Prepared once (`lowtide.prepare`), about a
minute on two cores; then it costs a look into the cache directory.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from lowtide.prepare import Control, kept_memmap, machine_corpus
from lowtide.prepare.job import Status
from lowtide.prepare.machine_text import CORPUS_PREFIX, WORDS_NEED, has_words
from lowtide.train.settings import Settings
from lowtide.units import MIB, format_size

BUDGET_SHARE = 8  # the budget is this part of the corpus
_SECONDS_BETWEEN_NOTES = 10.0


def with_corpus(settings: Settings, note: Callable[[str], None]) -> Settings:
    """The same settings with a corpus: as they are, or with this machine's text, prepared now unless it is there."""
    if settings.data or settings.mix:
        return settings
    if not has_words():
        note(f"a byte is a token here: {WORDS_NEED} is not installed; `pip install 'lowtide[prepare]'` brings it")
    made = machine_corpus(tokens=settings.corpus_tokens, progress=_PreparationNotes(note))
    if made.made:
        note(f"prepared {made.tokens:,} tokens ({format_size(made.bytes)}) of this machine's text into {made.path}")
    return with_machine_text(settings, made.path, made.bytes)


def with_machine_text(settings: Settings, path: Path, size: int) -> Settings:
    """The settings that read this corpus, under an eighth of its size unless a budget was stated."""
    share = size // BUDGET_SHARE
    even = f"{share // MIB}MiB" if share >= MIB else str(share)  # rounded down: at most an eighth
    budget = even if settings.budget == "auto" else settings.budget
    return replace(settings, data=str(path), budget=budget)


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
