"""Pieces in order become shards: each document to its corpus, once, with checkpoints on the way.

One idea: all that depends on order happens here, in one process - which corpus a document goes to, whether it was seen
before, where a shard ends - so engines need no agreement among themselves. A checkpoint is taken at the end of a piece,
after every finished shard and every `OFTEN` bytes. Costs the piece at hand, the writers' blocks and the table of seen
documents.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowtide.prepare.journal import Journal
from lowtide.prepare.pieces import Piece, Recipe, Tally
from lowtide.prepare.seen import Seen
from lowtide.prepare.shards import ShardWriter

OFTEN = 256 * 1024 * 1024  # bytes written between two checkpoints where shards are larger
TRAIN, VAL, DROPPED = 0, 1, -1
_ALL = 2**64


class Assembler:
    """Takes pieces from where the journal stopped."""

    def __init__(self, journal: Journal, recipe: Recipe, target: Path, seen_bytes: int) -> None:
        state = journal.read("journal.json") or {}
        request = recipe.request
        self._journal = journal
        self.split, self.piece = (int(number) for number in state.get("position", (0, 0)))
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

    def take(self, piece: Piece) -> None:
        """Append one piece, the next in order."""
        finished = 0
        if piece.hashes is None:
            finished += self.writers[0].add(piece.ids, piece.ends)
        else:
            for goes_to, ids, ends in self._routed(piece):
                finished += self.writers[goes_to].add(ids, ends)
        self.tally.add(piece.tally)
        self.done += piece.weight
        self.split, self.piece = piece.split, piece.number + 1
        self._unsaved += piece.ids.nbytes
        if finished or self._unsaved >= OFTEN:
            self.checkpoint()

    def checkpoint(self) -> None:
        """Everything on disk, counted, named."""
        self._journal.write(
            "journal.json",
            {
                "position": [self.split, self.piece],
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

    def _routed(self, piece: Piece) -> Iterator[tuple[int, NDArray[Any], NDArray[np.int64]]]:
        """Runs of documents with the same goal, in order."""
        assert piece.hashes is not None
        goals = self._goals(piece)
        if not len(goals):
            return
        borders = np.concatenate([piece.ends, [len(piece.ids)]]) if piece.opens else piece.ends
        changes = [0, *(np.flatnonzero(np.diff(goals)) + 1).tolist(), len(goals)]
        first = 0
        for begin, end in pairwise(changes):
            last, goal = int(borders[end - 1]), int(goals[begin])
            if goal != DROPPED:
                yield goal, piece.ids[first:last], piece.ends[begin:end] - first
            first = last

    def _goals(self, piece: Piece) -> NDArray[np.int8]:
        """Where each document of a piece goes."""
        assert piece.hashes is not None
        goals = np.where(piece.hashes[:, 0] < np.uint64(self._val), VAL, TRAIN).astype(np.int8)
        if self._seen is not None:
            new = self._seen.first(piece.hashes)
            goals[~new] = DROPPED
            self._count_dropped(piece, ~new)
        if piece.continues and self._open is not None:
            goals[0] = self._open
        self._open = int(goals[-1]) if piece.opens and len(goals) else None
        return goals

    def _count_dropped(self, piece: Piece, dropped: NDArray[np.bool_]) -> None:
        count = int(dropped.sum())
        piece.tally.duplicates += count
        piece.tally.documents -= count
