"""A few documents of the inputs, the same ones every time: for training a tokenizer and for comparing two.

One idea: every k-th split, so that the sample covers the inputs from end to end and depends on nothing else. Of what
can only be read from the beginning, the first block. Costs as much memory as was asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

from lowtide.prepare.blocks import raw_blocks
from lowtide.prepare.inputs import Input
from lowtide.prepare.pieces import Recipe, Tally, Worker
from lowtide.prepare.request import Request
from lowtide.prepare.splits import BLOCK, cut
from lowtide.prepare.tokenizer import BYTES

_COMPARED = 256 * 1024  # bytes of text two tokenizers are compared on: tokenizers does a megabyte a second
_EACH = 16 * 1024  # of one document, so that many are compared
_PLACES = 32  # of the inputs


def sample_texts(inputs: Sequence[Input], request: Request, most: int) -> Iterator[bytes]:
    """Documents as valid UTF-8, about ``most`` bytes of them; bad ones are passed over."""
    lenient = replace(request, skip_bad=True, invalid_utf8="replace", val=0.0, dedup=False, tokenizer="bytes")
    worker = Worker(Recipe(replace(lenient, train_bpe=0), BYTES, "bytes"))
    total = sum(one.size for one in inputs)
    step = max(1, total // most)
    given = 0
    for split in islice(cut(inputs, request), 0, None, step):
        for raw in islice(raw_blocks(split, lenient), 1 if split.streamed else None):
            for text in worker.texts(raw, Tally()):
                yield text.decode("utf-8", "replace").encode()
                given += len(text)
                if given >= most:
                    return


def compared_texts(inputs: Sequence[Input], request: Request) -> list[bytes]:
    """A small sample from many places, and the spellings that have gone wrong elsewhere."""
    texts: list[bytes] = []
    size, place = 0, -1
    for text in sample_texts(inputs, request, _PLACES * BLOCK):
        place += 1
        if place % 4:  # neighbours are alike
            continue
        short = text[:_EACH].decode("utf-8", "ignore").encode()
        texts.append(short)
        size += len(short)
        if size >= _COMPARED:
            break
    spelled = [
        "<|endoftext|> in the text",
        "  leading\n\n\nand trailing  \n",
        "caf\u00e9 \u4f60\u597d \U0001f642\t\u00a0x",
    ]
    return [text for text in texts if text] + [text.encode() for text in spelled]
