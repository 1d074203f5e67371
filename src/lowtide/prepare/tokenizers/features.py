"""What a tokenizer does to text, read from its parts: which library may encode, where a long document may be cut.

gigatoken is used only for the kind of tokenizer on which it was compared with tokenizers over every code point: a
byte-level BPE with one of the patterns below, no normaliser, and added tokens without conditions. It has an older
Unicode, so words with a code point of `UNLIKE` are encoded by tokenizers. ``python -m tests.prepare.engines``
makes that table again, and the tests check it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowtide.engine import engine
from lowtide.prepare.inputs.cuts import NOWHERE, WORDS, holds_a_place
from lowtide.prepare.tokenizers.tiktoken_ranks import GPT2, GPT4, GPT4O, byte_letters

_QWEN = GPT4.replace(r"\p{N}{1,3}", r"\p{N}")
PATTERNS = (GPT2, GPT4, GPT4O, _QWEN)
COMPARED = ("0.10.0",)  # versions of gigatoken
_CONDITIONS = ("single_word", "lstrip", "rstrip")

# First and last code point of every range that gigatoken 0.10.0 and tokenizers 0.23.3 cut differently.
_RANGES = (
    "088F 0C5C 0CDC 1ACF-1ADD 1AE0-1AEB A7CE-A7CF A7D2 A7D4 A7F1 10940-10959 10EC5-10EC7 10EFA-10EFB "
    "11B60-11B67 11DB0-11DDB 11DE0-11DE9 16EA0-16EB8 16EBB-16ED3 16FF2-16FF6 187F8-187FF 18D09-18D1E "
    "18D80-18DF2 1E6C0-1E6DE 1E6E0-1E6F5 1E6FE-1E6FF 2B73A-2B73F 2CEA2-2CEAD 323B0-33479"
)
UNLIKE = tuple((int(one.split("-")[0], 16), int(one.split("-")[-1], 16)) for one in _RANGES.split())


@dataclass(frozen=True)
class Features:
    """What is known of a tokenizer.json beside its ids."""

    cut: str = NOWHERE  # where a document may be cut without changing an id
    unusual: str = "this tokenizer is not a tokenizer.json"  # why gigatoken cannot encode with it; "": it can
    signs: bool = False  # whether text may be cut before signs as well
    repeated: tuple[str, int, int] | None = None  # a merge listed twice, with both places: the second would win


def features_of(whole: dict[str, Any]) -> Features:
    """The features of a parsed tokenizer.json; the safe minimum if it is not shaped as expected."""
    try:
        added = whole.get("added_tokens") or ()
        known = pattern_of(whole) is not None
        simple = not any(_conditions(token) or holds_a_place(token["content"]) for token in added)
        signs = known and simple and not any(holds_a_place(token["content"], signs=True) for token in added)
        cut = WORDS if known and simple else NOWHERE
        return Features(cut, _unusual(whole, added), signs, _repeated(whole["model"]))
    except (AttributeError, IndexError, KeyError, TypeError):
        return Features(unusual="this tokenizer is not shaped as usual")


def pattern_of(whole: dict[str, Any]) -> str | None:
    """The pattern that cuts text into words, if it is one we know and nothing else happens to the text."""
    cutter = whole.get("pre_tokenizer") or {}
    parts = cutter.get("pretokenizers") or [cutter]
    if parts[-1].get("type") != "ByteLevel" or parts[-1].get("add_prefix_space") or whole.get("normalizer"):
        return None
    if len(parts) == 1:
        return GPT2 if parts[0].get("use_regex", True) else None
    split = parts[0]
    plain = split.get("type") == "Split" and split.get("behavior") == "Isolated" and not split.get("invert")
    pattern = (split.get("pattern") or {}).get("Regex")
    usual = len(parts) == 2 and plain and not parts[1].get("use_regex", True)
    return pattern if usual and pattern in PATTERNS else None


def _unusual(whole: dict[str, Any], added: Sequence[dict[str, Any]]) -> str:
    model = whole["model"]
    if whole.get("normalizer"):
        return f"this tokenizer has a normaliser ({whole['normalizer'].get('type')})"
    if pattern_of(whole) is None:
        return "this tokenizer cuts words in a way for which gigatoken was not compared"
    if conditions := sorted({flag for token in added for flag in _conditions(token)}):
        return f"this tokenizer has added tokens with {', '.join(conditions)}"
    names = ("dropout", "unk_token", "byte_fallback", "fuse_unk", "continuing_subword_prefix", "end_of_word_suffix")
    odd = [name for name in names if model.get(name)]
    if model.get("type", "BPE") != "BPE" or odd:
        return f"this tokenizer is not a plain BPE ({', '.join(odd) or model.get('type')})"
    if any(letter not in model["vocab"] for letter in byte_letters().values()):
        return "this tokenizer has no id for some byte"
    return ""


def _repeated(model: dict[str, Any]) -> tuple[str, int, int] | None:
    seen: dict[str, int] = {}
    for place, merge in enumerate(model.get("merges") or ()):
        spelled = merge if isinstance(merge, str) else " ".join(merge)
        if spelled in seen:
            return spelled, seen[spelled], place
        seen[spelled] = place
    return None


def _conditions(token: dict[str, Any]) -> list[str]:
    return [flag for flag in _CONDITIONS if token.get(flag)]


RANGES = np.array(UNLIKE, np.uint32)


@cache
def _tables() -> tuple[re.Pattern[str], NDArray[np.int64], NDArray[np.bool_]]:
    """Such code points as a pattern, their first three bytes, and a flag for every first byte. Made for the engine
    without C only: a seventh of what a worker needs to start."""
    pattern = re.compile("[" + "".join(f"{chr(first)}-{chr(last)}" for first, last in UNLIKE) + "]")
    codes = (code for first, last in UNLIKE for code in range(first, last + 1))
    beginnings = np.array(sorted({int.from_bytes(chr(code).encode()[:3], "big") for code in codes}))
    return pattern, beginnings, np.isin(np.arange(256), beginnings >> 16)


def unlike_places(text: bytes) -> NDArray[np.int64]:
    """Where code points of `UNLIKE` begin in ``text``, which is UTF-8. Almost free for ASCII, cheap for other text."""
    if text.isascii():
        return np.empty(0, np.int64)
    if (found := engine().code_points(text, RANGES)) is not None:
        return np.frombuffer(found, np.int64)
    unlike, known, leads = _tables()
    data = np.frombuffer(text, np.uint8)
    places = np.flatnonzero(leads[data[:-2]])
    beginnings = (data[places].astype(np.int32) << 16) | (data[places + 1].astype(np.int32) << 8) | data[places + 2]
    near = places[np.isin(beginnings, known)].tolist()
    return np.array([at for at in near if unlike.match(text[at : at + 4].decode("utf-8", "ignore"))], np.int64)
