"""gigatoken beside tokenizers over all code points. ``python -m tests.prepare.engines`` prints the ranges that
differ, as ``lowtide.prepare.tokenizers.features`` keeps them; takes minutes.

A tokenizer of merges that join any code point with a letter, a digit and a stop shows which of them a code point shares
a word with, and so how a library classes it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

import numpy as np

from lowtide.prepare.tokenizers.bpe import tokenizer_json
from lowtide.prepare.tokenizers.encoders import Tokenizers
from lowtide.prepare.tokenizers.features import PATTERNS
from lowtide.prepare.tokenizers.tiktoken_ranks import GPT2, byte_letters
from lowtide.prepare.tokenizers.vocabulary import Vocabulary, from_json

NEAR = ("a", "A", "1", ".", " ", "\n", "'", "/")
TOGETHER = 512  # code points per document


def telling(pattern: str) -> Vocabulary:
    letters = byte_letters()
    leads, rest = range(0xC2, 0xF5), range(0x80, 0xC0)
    merges = [[letters[ord(near)], letters[lead]] for near in NEAR for lead in leads]
    merges += [[letters[last], letters[ord(near)]] for near in NEAR for last in rest]
    merges += [[letters[last], letters[lead]] for lead in leads for last in rest]
    whole = json.loads(tokenizer_json(merges))
    if pattern != GPT2:
        split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
        whole["pre_tokenizer"] = {
            "type": "Sequence",
            "pretokenizers": [split, {**whole["pre_tokenizer"], "use_regex": False}],
        }
    return from_json("telling", json.dumps(whole))


def differing(codes: Sequence[int], pattern: str) -> set[int]:
    """Those of ``codes`` for which the two libraries give other ids."""
    from gigatoken.gigatoken_rs import load_hf_json

    vocabulary = telling(pattern)
    fast, slow = load_hf_json(vocabulary.plain), Tokenizers(vocabulary)

    def unlike(some: Sequence[int]) -> bool:
        text = "".join("".join(near + chr(code) for near in NEAR) + chr(code) + "a " for code in some).encode()
        return not np.array_equal(fast.encode(text), slow.encode([text])[0][:-1])

    found: set[int] = set()
    for at in range(0, len(codes), TOGETHER):
        if unlike(codes[at : at + TOGETHER]):
            found |= {code for code in codes[at : at + TOGETHER] if unlike([code])}
    return found


def ranges(codes: Iterable[int]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for code in sorted(codes):
        if found and found[-1][1] == code - 1:
            found[-1] = (found[-1][0], code)
        else:
            found.append((code, code))
    return found


if __name__ == "__main__":
    everything = [code for code in range(0x80, 0x110000) if not 0xD800 <= code < 0xE000]
    unlike = ranges(set().union(*(differing(everything, pattern) for pattern in PATTERNS)))
    print(" ".join(f"{a:04X}" if a == b else f"{a:04X}-{b:04X}" for a, b in unlike))
