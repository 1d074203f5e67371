"""Encoded blocks in order become shards: each document to its corpus, once, with checkpoints on the way.

All that depends on order happens here, in one process - which corpus a document goes to, whether it was seen
before, where a shard ends - so engines need no agreement among themselves. A checkpoint is taken at the end of a block,
after every finished shard and every `OFTEN` bytes. Costs the block at hand, the writers' blocks and the table of seen
documents.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowtide.corpus.journal import Journal
from lowtide.corpus.shards import OFTEN, ShardWriter
from lowtide.prepare.encoding import EncodedBlock, Recipe
from lowtide.prepare.inputs.texts import Tally
from lowtide.prepare.seen import Seen

TRAIN, VAL, DROPPED = 0, 1, -1
_ALL = 2**64


class Assembler:
    """Takes encoded blocks from where the journal stopped."""

    def __init__(self, journal: Journal, recipe: Recipe, target: Path, seen_bytes: int) -> None:
        state = journal.read("journal.json") or {}
        request = recipe.request
        self._journal = journal
        self.section, self.block = (int(number) for number in state.get("position", (0, 0)))
        self.done = int(state.get("done", 0))  # bytes of input
        self.tally = Tally(**state.get("tally", {}))
        self._open: int | None = state.get("open")  # where the document goes that is not at its end yet
        self._val = int(request.val * _ALL)
        parts = ("train", "val") if request.val else ("",)
        before = state.get("writers", [{}] * len(parts))
        dtype, size = recipe.vocabulary.dtype, request.shard_tokens
        self.writers = [
            ShardWriter(target / part, journal.path, dtype, size, one) for part, one in zip(parts, before, strict=True)
        ]
        self._seen = Seen(seen_bytes, journal.path / "seen", state.get("seen", 0)) if request.dedup else None
        self._unsaved = 0

    @property
    def tokens(self) -> int:
        return sum(writer.tokens for writer in self.writers)

    @property
    def shards(self) -> int:
        return sum(len(writer.shards) for writer in self.writers)

    def take(self, block: EncodedBlock) -> None:
        """Append one block, the next in order."""
        finished = 0
        if block.hashes is None:
            finished += self.writers[0].add(block.ids, block.ends)
        else:
            for goes_to, ids, ends in self._routed(block):
                finished += self.writers[goes_to].add(ids, ends)
        self.tally.add(block.tally)
        self.done += block.weight
        self.section, self.block = block.section, block.number + 1
        self._unsaved += block.ids.nbytes
        if finished or self._unsaved >= OFTEN:
            self.checkpoint()

    def checkpoint(self) -> None:
        """Everything on disk, counted, named."""
        self._journal.write(
            "journal.json",
            {
                "position": [self.section, self.block],
                "done": self.done,
                "tally": self.tally.as_dict(),
                "open": self._open,
                "seen": self._seen.checkpoint() if self._seen is not None else 0,
                "writers": [writer.checkpoint() for writer in self.writers],
            },
        )
        for writer in self.writers:
            writer.settle()
        self._unsaved = 0

    def end(self) -> None:
        """Close the last shards and count them."""
        for writer in self.writers:
            writer.end()
        self.checkpoint()

    def close(self) -> None:
        for writer in self.writers:
            writer.close()
        if self._seen is not None:
            self._seen.close()

    def _routed(self, block: EncodedBlock) -> Iterator[tuple[int, NDArray[Any], NDArray[np.int64]]]:
        """Neighbouring documents with the same goal, in order."""
        assert block.hashes is not None
        goals = self._goals(block)
        if not len(goals):
            return
        borders = np.concatenate([block.ends, [len(block.ids)]]) if block.opens else block.ends
        changes = [0, *(np.flatnonzero(np.diff(goals)) + 1).tolist(), len(goals)]
        first = 0
        for begin, end in pairwise(changes):
            last, goal = int(borders[end - 1]), int(goals[begin])
            if goal != DROPPED:
                yield goal, block.ids[first:last], block.ends[begin:end] - first
            first = last

    def _goals(self, block: EncodedBlock) -> NDArray[np.int8]:
        """Where each document of a block goes."""
        assert block.hashes is not None
        goals = np.where(block.hashes[:, 0] < np.uint64(self._val), VAL, TRAIN).astype(np.int8)
        if self._seen is not None:
            new = self._seen.first(block.hashes)
            goals[~new] = DROPPED
            self._count_dropped(block, ~new)
        if block.continues and self._open is not None:
            goals[0] = self._open
        self._open = int(goals[-1]) if block.opens and len(goals) else None
        return goals

    def _count_dropped(self, block: EncodedBlock, dropped: NDArray[np.bool_]) -> None:
        count = int(dropped.sum())
        block.tally.duplicates += count
        block.tally.documents -= count
