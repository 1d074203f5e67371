"""Encoded blocks in order become shards: each document to its corpus, once, with checkpoints on the way.

Everything that depends on order - which corpus a document goes to, whether it was seen before, where a shard ends -
is decided here, in one process, so engines need not coordinate. A checkpoint is taken at the end of a block,
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

DROPPED = -1


class Assembler:
    """Takes encoded blocks, beginning where the journal stopped."""

    def __init__(self, journal: Journal, recipe: Recipe, target: Path, seen_bytes: int, single: int = 0) -> None:
        """``single``: bytes of the only document of the input, which is then cut where a part ends; else 0."""
        state = journal.read("journal.json") or {}
        request = recipe.request
        self._journal = journal
        self.section, self.block = (int(number) for number in state.get("position", (0, 0)))
        self.done = int(state.get("done", 0))  # bytes of input
        self.tally = Tally(**state.get("tally", {}))
        self._open: int | None = state.get("open")  # the part of the document that has not ended yet
        shares = {part: share for part, share in (("val", request.val), ("test", request.test)) if share}
        self.parts = ("train", *shares) if shares else ("",)
        self._shares = np.cumsum(list(shares.values()))
        # Where parts end in a single document, in bytes of input: train first, the others after it.
        behind = np.cumsum(list(shares.values())[::-1])[::-1]
        self._ends = single * (1 - behind) if single and shares else None
        self._eot = recipe.vocabulary.eot
        self.least = float(state.get("least", 1.0))  # the smallest --val that would have taken a document from train
        before = state.get("writers", [{}] * len(self.parts))
        dtype, size = recipe.vocabulary.dtype, request.shard_tokens
        self.writers = [
            ShardWriter(target / part, journal.path, dtype, size, one)
            for part, one in zip(self.parts, before, strict=True)
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
        if self._ends is not None:
            for goes_to, ids, ends in self._cut(block):
                finished += self.writers[goes_to].add(ids, ends)
        elif block.hashes is None:
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
        """Put everything on disk, count it in the journal, then give finished shards their names."""
        self._journal.write(
            "journal.json",
            {
                "position": [self.section, self.block],
                "done": self.done,
                "tally": self.tally.as_dict(),
                "open": self._open,
                "least": self.least,
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
        """Runs of neighbouring documents that go to the same part, in order."""
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

    def _cut(self, block: EncodedBlock) -> Iterator[tuple[int, NDArray[Any], NDArray[np.int64]]]:
        """A block of the only document, its tokens dealt to the parts in turn, with an end of text after each part."""
        assert self._ends is not None
        first, count = 0, len(block.ids)
        for part, border in enumerate((*self._ends.tolist(), np.inf)):
            share = (border - self.done) / max(1, block.weight)
            last = count if share >= 1 else max(first, round(count * share))
            ids = block.ids[first:last]
            if 0 < share < 1:
                ids = np.append(ids, np.array([self._eot], ids.dtype))
                yield part, ids, np.array([len(ids)], np.int64)
            elif last == count:
                yield part, ids, block.ends - first
                return
            first = last

    def _goals(self, block: EncodedBlock) -> NDArray[np.int64]:
        """Where each document of a block goes."""
        assert block.hashes is not None
        places = block.hashes[:, 0].astype(np.float64) / 2.0**64
        goals = (np.searchsorted(self._shares, places, side="right") + 1) % (len(self._shares) + 1)
        self.least = min(self.least, float(places.min(initial=1.0)))
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
