"""A few documents of the inputs, the same ones every time: for training a tokenizer and for comparing two.

Every k-th section, so that the sample covers the inputs from end to end and depends on nothing else. Of what
can only be read from the beginning, the first block. Costs as much memory as was asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

from lowtide.corpus.request import Request
from lowtide.prepare.inputs.listing import Input
from lowtide.prepare.inputs.sections import TEXT_BLOCK, sections_of
from lowtide.prepare.inputs.text_blocks import text_blocks
from lowtide.prepare.inputs.texts import Tally, texts

_COMPARED = 256 * 1024  # bytes of text two tokenizers are compared on: tokenizers does a megabyte a second
_EACH = 16 * 1024  # of one document, so that many are compared
_PLACES = 32  # of the inputs


def sample_texts(inputs: Sequence[Input], request: Request, most: int) -> Iterator[bytes]:
    """Documents as valid UTF-8, about ``most`` bytes of them; bad ones are passed over."""
    lenient = replace(request, skip_bad=True, invalid_utf8="replace", val=0.0, dedup=False, tokenizer="bytes")
    total = sum(one.size for one in inputs)
    step = max(1, total // most)
    given = 0
    for section in islice(sections_of(inputs, request), 0, None, step):
        for block in islice(text_blocks(section, lenient), 1 if section.streamed else None):
            for text in texts(block, lenient, Tally(), utf8=False):
                yield text.decode("utf-8", "replace").encode()
                given += len(text)
                if given >= most:
                    return


def compared_texts(inputs: Sequence[Input], request: Request) -> list[bytes]:
    """A small sample from many places, and the spellings that have gone wrong elsewhere."""
    chosen: list[bytes] = []
    size, place = 0, -1
    for text in sample_texts(inputs, request, _PLACES * TEXT_BLOCK):
        place += 1
        if place % 4:  # neighbours are alike
            continue
        short = text[:_EACH].decode("utf-8", "ignore").encode()
        chosen.append(short)
        size += len(short)
        if size >= _COMPARED:
            break
    spelled = [
        "<|endoftext|> in the text",
        "  leading\n\n\nand trailing  \n",
        "caf\u00e9 \u4f60\u597d \U0001f642\t\u00a0x",
    ]
    return [text for text in chosen if text] + [text.encode() for text in spelled]
