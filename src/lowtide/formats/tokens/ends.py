"""Where documents end, block by block.

An index may be larger than memory, so ends come as a stream of arrays of at most 32,768 positions, counted in tokens
over all shards. Costs about 1.5 MiB at a time, whatever the index holds. Searching for an end-of-text token needs the
tokens themselves and is not done here.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from lowtide.errors import FormatError, ReadError
from lowtide.formats.header import HeaderFile
from lowtide.formats.layout import DocumentIndex, Ends, Layout

_BLOCK = 32_768


def document_ends(layout: Layout) -> Iterator[Ends] | None:
    """The position after the last token of each document, ascending; ``None`` if the format does not know."""
    return None if layout.documents is None else _over_shards(layout)


def _over_shards(layout: Layout) -> Iterator[Ends]:
    first = 0
    for shard, tokens in zip(layout.documents or (), layout.rows, strict=True):
        with HeaderFile(shard.path, shard.made) as index:
            if index.size != shard.size:
                raise ReadError(
                    f"{shard.path}: expected {shard.size} bytes as when opened, got {index.size}. Open it again.",
                    path=shard.path,
                    offset=0,
                )
            ends = _megatron(index, shard, layout.dtype.itemsize) if shard.kind == "megatron" else _stored(index, shard)
            last = 0
            for block in ends:
                _refuse_disorder(shard.path, block, last, tokens)
                last = int(block[-1])
                yield block + first
        if last != tokens:
            raise FormatError(
                f"{shard.path}: expected the last document to end at token {tokens}, got {last}. Write it again."
            )
        first += tokens


def _refuse_disorder(path: str, block: Ends, last: int, tokens: int) -> None:
    if block[0] < last or block[-1] > tokens or (np.diff(block) < 0).any():
        raise FormatError(
            f"{path}: expected document ends ascending from {last} to {tokens}, got {block[0]} to {block[-1]} in one "
            "block, or a step back inside it. Write it again."
        )


def _stored(index: HeaderFile, shard: DocumentIndex, skip: int = 0) -> Iterator[Ends]:
    """The int64 table as it is; uint64 beyond 2**63 turns negative and is refused as out of order."""
    for at in range(skip, shard.count, _BLOCK):
        yield _table(index, shard.offset, at, min(_BLOCK, shard.count - at))


def _megatron(index: HeaderFile, shard: DocumentIndex, itemsize: int) -> Iterator[Ends]:
    """Boundaries are sequence numbers: each becomes the byte pointer of that sequence, divided by the token size."""
    for numbers in _stored(index, shard, skip=1):
        if (np.diff(numbers) < 0).any() or numbers[0] < 0 or numbers[-1] > shard.sequences:
            raise FormatError(
                f"{shard.path}: expected document boundaries up to {shard.sequences}, got others. Write it again."
            )
        done = 0
        while done < numbers.size:
            # One block of pointers serves every boundary that falls into it; documents of many sequences take more.
            low = int(numbers[done])
            take = int(np.searchsorted(numbers, low + _BLOCK, side="left")) - done
            wanted = numbers[done : done + take]
            pointers = _pointers(index, shard, low, min(int(wanted[-1]) + 1 - low, _BLOCK), itemsize)
            yield pointers[wanted - low]
            done += take


def _pointers(index: HeaderFile, shard: DocumentIndex, first: int, count: int, itemsize: int) -> Ends:
    """Token positions where sequences begin; the one after the last is where the last one ends."""
    inside = min(count, shard.sequences - first)
    starts = _table(index, shard.pointers, first, inside)
    if inside == count:
        return starts // itemsize
    last = int(_table(index, shard.pointers, shard.sequences - 1, 1)[0])
    length = int.from_bytes(index.read_exactly(shard.pointers - 4, 4), "little", signed=True)
    return np.append(starts, last + length * itemsize) // itemsize


def _table(index: HeaderFile, offset: int, first: int, count: int) -> Ends:
    return np.frombuffer(index.read_exactly(offset + 8 * first, 8 * count), "<i8")
