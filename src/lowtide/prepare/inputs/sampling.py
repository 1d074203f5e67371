"""A few documents of the inputs, the same ones every time: for training a tokenizer.

Takes every k-th section, so that the sample covers the inputs from end to end and depends on nothing else. Inputs that
can only be read from the beginning give their beginning. Costs a block.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

from lowtide.corpus.request import Request
from lowtide.prepare.inputs.cuts import WORDS
from lowtide.prepare.inputs.listing import Input
from lowtide.prepare.inputs.sections import TEXT_BLOCK, sections_of
from lowtide.prepare.inputs.text_blocks import text_blocks
from lowtide.prepare.inputs.texts import Tally, texts


def sample_texts(inputs: Sequence[Input], request: Request, most: int) -> Iterator[bytes]:
    """Documents as valid UTF-8, about ``most`` bytes of them; bad ones are skipped."""
    lenient = replace(request, skip_bad=True, invalid_utf8="replace")
    step = max(1, sum(one.size for one in inputs) // most)
    given, streamed = 0, max(1, most // TEXT_BLOCK // max(1, len(inputs)))
    for section in islice(sections_of(inputs, request, WORDS), 0, None, step):
        for block in islice(text_blocks(section, lenient), streamed if section.streamed else None):
            for text in texts(block, lenient, Tally(), utf8=True):
                yield text
                given += len(text)
                if given >= most:
                    return
