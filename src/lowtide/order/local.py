"""A shuffle that stays among neighbours: blocks in random order, each mixed within itself.

One idea: time is cut into slots as the rows are into blocks; a permutation says which block fills a slot, and
a bijection of its own which of its rows comes when. Exactly once, O(1) memory, any position on its own.

What it costs: about 55 ns per row in calls of 8,192 (150 ns for blocks of 2,048 rows and fewer, which need more
rounds). What it does not do: mix rows of different blocks, so sorted data is mixed only within each block.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field

import numpy as np
from numpy.typing import ArrayLike

from lowtide.order.feistel import Feistel
from lowtide.order.orders import Permutation, Rows, checked, freeze, stretch
from lowtide.order.words import Words, integer, key, mixed, row_count


@dataclass(frozen=True)
class LocalPermutation:
    """Blocks of ``rows_per_block`` neighbouring rows in random order, each shuffled within itself.

    A block's rows come one after another, so a reader that holds one block reads the file in long runs. The
    last block may be short and has its random place like every other. Each block has a bijection of its own:
    one ``Feistel`` whose hash takes a word for the block as a tweak, so a thousand blocks cost no more than
    one. A block size above n is n: then this is a full shuffle, though not the one ``Permutation`` makes.
    """

    n: int
    rows_per_block: int
    _: KW_ONLY
    seed: int
    epoch: int = 0
    purpose: str = "rows"
    _blocks: Permutation = field(init=False, repr=False, compare=False)
    _inside: Feistel | None = field(init=False, repr=False, compare=False)
    _inside_short: Feistel | None = field(init=False, repr=False, compare=False)
    _tweak_key: int = field(init=False, repr=False, compare=False)
    _short: int = field(init=False, repr=False, compare=False)  # rows of the last block if short, else 0
    _short_at: int | None = field(init=False, repr=False, compare=False, default=None)  # its place in time

    def __post_init__(self) -> None:
        where = "LocalPermutation"
        n, size = row_count(where, self.n), integer(where, "rows_per_block", self.rows_per_block)
        if size < 1:
            raise ValueError(
                f"{where}: expected rows_per_block of at least 1, got {size}. "
                "Pass the number of neighbouring rows to mix."
            )
        seed, epoch = (integer(where, name, getattr(self, name)) for name in ("seed", "epoch"))
        size = max(1, min(size, n))
        short = n % size
        inside, inside_short, tweak = (
            key(seed, epoch, self.purpose, n, size, role) for role in ("inside", "inside short", "tweak")
        )
        blocks = Permutation(-(-n // size), seed=key(seed, epoch, self.purpose, n, size, "blocks"))
        freeze(self, n=n, rows_per_block=size, seed=seed, epoch=epoch, _blocks=blocks)
        freeze(self, _tweak_key=tweak, _short=short)
        freeze(self, _inside=Feistel(size, inside) if size > 1 else None)
        freeze(self, _inside_short=Feistel(short, inside_short) if short > 1 else None)

    def __len__(self) -> int:
        return self.n

    def __reduce__(self) -> tuple[object, ...]:
        return _local_permutation, (self.n, self.rows_per_block, self.seed, self.epoch, self.purpose)

    def at(self, positions: ArrayLike) -> Rows:
        return self._rows(checked("LocalPermutation.at", positions, self.n))

    def block(self, start: int, count: int) -> Rows:
        return self._rows(stretch("LocalPermutation.block", start, count, self.n))

    def inverse(self, rows: ArrayLike) -> Rows:
        numbers = checked("LocalPermutation.inverse", rows, self.n)
        size = np.uint64(self.rows_per_block)
        blocks, offsets = np.divmod(numbers, size)
        self._shuffle(offsets, blocks, inverted=True)
        slots = self._blocks.inverse(blocks).view(np.uint64)
        numbers = slots * size + offsets
        if self._short:
            numbers[slots > np.uint64(self._short_slot())] -= np.uint64(self.rows_per_block - self._short)
        return numbers.view(np.int64)

    def run_at(self, position: int) -> tuple[int, int, int]:
        """The block that is being shuffled at ``position``: its first row, its rows, and the position it begins at."""
        size, missing = self.rows_per_block, 0
        if self._short and position >= self._short_slot() * size + self._short:
            missing = size - self._short
        slot = (position + missing) // size
        block = int(self._blocks.at([slot])[0])
        rows = self._short if self._short and block == self._blocks.n - 1 else size
        return block * size, rows, slot * size - missing

    def _rows(self, positions: Words) -> Rows:
        """Position -> (slot in time, offset) -> (block of the file, shuffled offset) -> row."""
        size = np.uint64(self.rows_per_block)
        if self._short:
            # Behind the short block, count as if it had been a full one: then every slot is `size` long.
            behind = np.uint64(self._short_slot() * self.rows_per_block + self._short)
            positions[positions >= behind] += np.uint64(self.rows_per_block - self._short)
        slots, offsets = np.divmod(positions, size)
        blocks = self._blocks.at(slots).view(np.uint64)
        self._shuffle(offsets, blocks, inverted=False)
        return (blocks * size + offsets).view(np.int64)

    def _short_slot(self) -> int:
        slot = self._short_at
        if slot is None:
            slot = int(self._blocks.inverse([self._blocks.n - 1])[0])
            freeze(self, _short_at=slot)
        return slot

    def _shuffle(self, offsets: Words, blocks: Words, *, inverted: bool) -> None:
        full = np.flatnonzero(blocks != np.uint64(self._blocks.n - 1)) if self._short else slice(None)
        if self._inside is not None:
            chosen = offsets[full]
            tweaks = mixed(self._tweak_key, blocks[full].copy())
            (self._inside.backward if inverted else self._inside.forward)(chosen, tweaks)
            offsets[full] = chosen
        if self._inside_short is not None:
            last = np.flatnonzero(blocks == np.uint64(self._blocks.n - 1))
            chosen = offsets[last]
            (self._inside_short.backward if inverted else self._inside_short.forward)(chosen)
            offsets[last] = chosen


def _local_permutation(n: int, rows_per_block: int, seed: int, epoch: int, purpose: str) -> LocalPermutation:
    return LocalPermutation(n, rows_per_block, seed=seed, epoch=epoch, purpose=purpose)
