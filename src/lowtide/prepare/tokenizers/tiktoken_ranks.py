"""A .tiktoken file as a tokenizer.json.

The file holds tokens by rank and nothing else; the merges follow from the ranks, and the pattern that cuts
text into words is known for the encodings OpenAI publishes, by the file's name. A name that is not one of them is
refused: a wrong pattern would silently give wrong ids. Done once per job.
"""

from __future__ import annotations

import base64
import binascii
import json
from pathlib import Path

from lowtide.errors import FormatError

_SPACES = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
# The patterns that define these encodings; a .tiktoken file does not carry its own.
GPT2 = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
GPT4 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*" + _SPACES
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_ENDING = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
GPT4O = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_ENDING}|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_ENDING}"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + _SPACES
)
_ENCODINGS = {"r50k_base": (GPT2, 50256), "cl100k_base": (GPT4, 100257), "o200k_base": (GPT4O, 199999)}


def ranks_to_json(path: str, content: bytes) -> str:
    """The tokenizer.json that gives the ids of this .tiktoken file."""
    name = Path(path).stem
    if name not in _ENCODINGS:
        raise FormatError(
            f"{path}: expected one of {', '.join(f'{known}.tiktoken' for known in _ENCODINGS)}, got another name, "
            "which does not say how it cuts words. Save the tokenizer as tokenizer.json."
        )
    ranks = _ranks(path, content)
    pattern, end = _ENCODINGS[name]
    spelled = byte_letters()
    words = {token: "".join(spelled[byte] for byte in token) for token in ranks}
    vocab = {words[token]: rank for token, rank in ranks.items()}
    special = {"id": end, "content": "<|endoftext|>", "special": True, "normalized": False}
    special |= {"single_word": False, "lstrip": False, "rstrip": False}
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    letters = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    model = {"type": "BPE", "dropout": None, "unk_token": None, "byte_fallback": False, "ignore_merges": True}
    model |= {"continuing_subword_prefix": None, "end_of_word_suffix": None, "fuse_unk": False}
    return json.dumps(
        {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [special],
            "normalizer": None,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, letters]},
            "post_processor": None,
            "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
            "model": {**model, "vocab": vocab, "merges": _merges(ranks, words)},
        }
    )


def byte_letters() -> dict[int, str]:
    """The printable letter that stands for each byte in a byte-level vocabulary, as GPT-2 chose them."""
    kept = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in kept]
    return {byte: chr(byte) for byte in kept} | {byte: chr(256 + place) for place, byte in enumerate(others)}


def _ranks(path: str, content: bytes) -> dict[bytes, int]:
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(content.splitlines(), 1):
        if not line.strip():
            continue
        try:
            token, rank = line.split()
            ranks[base64.b64decode(token, validate=True)] = int(rank)
        except (ValueError, binascii.Error):
            raise FormatError(
                f"{path}: expected 'token rank' in line {number}, got something else. Download it again."
            ) from None
    if any(bytes([byte]) not in ranks for byte in range(256)):
        raise FormatError(f"{path}: expected a rank for every byte, got {len(ranks)} ranks. Download it again.")
    return ranks


def _merges(ranks: dict[bytes, int], words: dict[bytes, str]) -> list[list[str]]:
    """Every pair of tokens that makes a token, ordered by the rank of the result."""
    merges = []
    for token in sorted(ranks, key=ranks.__getitem__):
        pairs = [(token[:at], token[at:]) for at in range(1, len(token))]
        known = [pair for pair in pairs if pair[0] in ranks and pair[1] in ranks]
        known.sort(key=lambda pair: (ranks[pair[0]], ranks[pair[1]]))
        merges += [[words[left], words[right]] for left, right in known]
    return merges
