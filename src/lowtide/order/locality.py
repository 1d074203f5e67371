"""What ``locality=`` means: bytes that a local shuffle mixes at a time, and the blocks they are made of.

``"64MiB"`` is windows of 64 MiB made of blocks of 1 MiB, ``("64MiB", "256KiB")`` states the block too. Bytes are what a
disk or an object store knows, so equal bytes are stated for rows of any size; items are what an order counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lowtide.units import MIB, format_size, parse_size

BLOCK = MIB  # long for any disk, a usual request to an object store, and 64 of them are a usual window
FEW_BLOCKS = 32  # a window of fewer shows in sorted data: docs/order.md has the table

Stated = int | str | tuple[int | str, ...] | list[int]  # as ``locality=`` takes it: one size, or two


@dataclass(frozen=True)
class Locality:
    """Windows of ``window`` bytes made of blocks of ``block`` bytes, in items of ``item`` bytes."""

    window: int
    block: int
    item: int

    @property
    def items_per_block(self) -> int:
        return max(1, self.block // max(1, self.item))

    @property
    def blocks_per_window(self) -> int:
        return max(1, self.window // (self.items_per_block * max(1, self.item)))

    @property
    def items_per_window(self) -> int:
        return self.items_per_block * self.blocks_per_window

    def setting(self) -> list[int]:
        """For a state: two numbers that ``locality=`` takes too."""
        return [self.window, self.block]

    def mixes(self, n: int) -> str:
        """How well that mixes ``n`` items, for ``plan()``."""
        per_block = self.items_per_block
        blocks = -(-n // per_block)
        many = -(-blocks // max(1, -(-blocks // self.blocks_per_window)))  # windows are as equal as they can be
        size = format_size(per_block * self.item)
        if many == blocks:
            each = "the only block" if blocks == 1 else f"all {blocks:,} blocks"
            return f"local shuffle: one window holds {each} of {size}, so all is mixed as in a full shuffle"
        found = (
            f"local shuffle: a window mixes {many:,} blocks of {size}, one from each of as many equal parts of the data"
        )
        if many == 1:
            found = f"local shuffle: a window is 1 block of {size}, so only neighbours are mixed"
        if self.blocks_per_window < FEW_BLOCKS:
            found += (
                f"; {many} mix{'es' * (many == 1)} little, and sorted data would show it: "
                f"{format_size(FEW_BLOCKS * per_block * self.item)} would hold {FEW_BLOCKS} blocks, and smaller blocks "
                f"need less, as in locality=({self.window}, {max(1, self.window // (2 * FEW_BLOCKS))})"
            )
        return found


def locality_of(stated: Any, item: int, *, order: str = "shuffled", what: str = "row") -> Locality | None:
    """What was stated for items of so many bytes; None where nothing was."""
    if stated is None:
        return None
    pair = stated if isinstance(stated, (tuple, list)) else (stated,)
    if not 1 <= len(pair) <= 2:
        raise ValueError(
            f"locality: expected a size, or two (of the window and of its blocks), got {len(pair)}. "
            'Use locality=("64MiB", "1MiB").'
        )
    window = parse_size(pair[0], what="locality")
    block = min(BLOCK, window) if len(pair) == 1 else parse_size(pair[1], what="locality's block")
    if order != "shuffled":
        raise ValueError(
            f"locality: expected order='shuffled', got order={order!r}, which has nothing to shuffle. "
            "Leave locality= out."
        )
    if what == "window" and window < item:
        raise ValueError(
            f"locality: expected at least one window ({item} bytes), got {window} bytes. "
            f"Use locality={max(item, MIB)} or more; 64MiB is usual."
        )
    if block > window:
        raise ValueError(
            f"locality: expected blocks of at most the {window} bytes they make up, got {block}. "
            f"Use locality=({window}, {min(BLOCK, max(1, window // FEW_BLOCKS))})."
        )
    return Locality(window, block, item)


def locality_text(text: str) -> tuple[str, ...]:
    """``64MiB`` or ``64MiB,1MiB``, as commands take it."""
    found = tuple(part.strip() for part in text.split(","))
    for part in found:
        parse_size(part, what="--locality")
    return found
