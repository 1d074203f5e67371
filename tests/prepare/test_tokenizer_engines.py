"""Two libraries, one set of ids: gigatoken is taken by what a tokenizer does, and watched."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.prepare.conftest import make_documents
from tests.prepare.engines import differing, telling

from lowtide.errors import FormatError
from lowtide.prepare.tokenizers import encoders
from lowtide.prepare.tokenizers.encoders import Ends, Gigatoken, Ids, Tokenizers, choose_encoder
from lowtide.prepare.tokenizers.features import PATTERNS, UNLIKE, unlike_places
from lowtide.prepare.tokenizers.tiktoken_ranks import GPT2
from lowtide.prepare.tokenizers.vocabulary import load_vocabulary

pytest.importorskip("gigatoken", reason="NOT TESTED: gigatoken beside tokenizers - gigatoken is not installed")


@pytest.mark.slow
def test_the_libraries_differ_on_the_kept_code_points_and_on_no_others() -> None:
    kept = {code for first, last in UNLIKE for code in range(first, last + 1)}
    codes = [code for code in range(0x80, 0x34000) if not 0xD800 <= code < 0xE000]
    for pattern in PATTERNS:
        assert differing([code for code in codes if code not in kept], pattern) == set()
    ends = sorted({code for pair in UNLIKE for code in pair})
    assert set().union(*(differing(ends, pattern) for pattern in PATTERNS)) == set(ends)


def test_code_points_are_found_wherever_they_stand() -> None:
    for first, last in UNLIKE:
        for code in (first, last):
            assert unlike_places(f"é {chr(code)}".encode()).tolist() == [3]
    assert not len(unlike_places("naïve 日本語 🙂 తెలుగు \U0003134a".encode()))


def test_documents_with_such_a_code_point_get_the_ids_of_tokenizers(tokenizer: Path) -> None:
    vocabulary = load_vocabulary(str(tokenizer))
    texts = [text.encode() for text in make_documents(9)]
    texts[2] += "the\U000323b0the \U000323b0".encode()
    texts[8] += "the\u088fthe".encode()
    fast, slow = Gigatoken(vocabulary).encode(texts), Tokenizers(vocabulary).encode(texts)
    assert np.array_equal(fast[0], slow[0])
    assert np.array_equal(fast[1], slow[1])


STRETCHES = [
    "the",
    "The ",
    " a",
    ",",
    '"',
    "\n",
    "  ",
    "'s",
    "'",
    "12",
    ";",
    ":",
    ".",
    "=",
    "(",
    ")",
    "é",
    "中。",
    "я ",
    "<|endoftext|>",
    "\u088f",
    "\u088f",
]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_only_the_words_around_such_a_code_point_need_tokenizers(pattern: str) -> None:
    vocabulary, rng = telling(pattern), random.Random(4)
    encoder, reference = Gigatoken(vocabulary), Tokenizers(vocabulary)
    for _ in range(300):
        pieces = STRETCHES if rng.random() < 0.3 else [one for one in STRETCHES if one != "<|endoftext|>"]
        texts = ["".join(rng.choices(pieces, k=rng.randrange(1, 60))).encode() for _ in range(rng.randrange(1, 4))]
        fast, slow = encoder.encode(texts), reference.encode(texts)
        assert np.array_equal(fast[0], slow[0]), texts
        assert np.array_equal(fast[1], slow[1]), texts


def test_a_stretch_ends_at_the_next_place_to_cut_and_never_in_another_document() -> None:
    encoder = Gigatoken(telling(GPT2))
    end = encoder._separator
    text = b"one two " + "th\u088fe".encode() + b" three" + end + "\u088f".encode() + end + b"four"
    found = [text[slice(*one)] for one in encoder._stretches(text, unlike_places(text), end)]
    assert found == [" th\u088fe".encode(), "\u088f".encode()]


def test_a_stretch_also_ends_at_a_sign_behind_a_letter() -> None:
    """In tables there may be no blank behind a letter for 100 KB."""
    encoder = Gigatoken(telling(GPT2))
    text = '(0xA7CD, "V"),\n    (0xA7CE, "M", "\u088f"),\n    (0xA7CF, "V"),'.encode()
    found = [text[slice(*one)] for one in encoder._stretches(text, unlike_places(text), b"")]
    assert found == ['", "\u088f"),\n    (0xA7CF'.encode()]


def test_an_added_token_with_such_a_sign_is_not_cut(tokenizer: Path) -> None:
    path = changed(
        tokenizer, lambda one: one["added_tokens"].append(ADDED | {"single_word": False, "content": "e,\u088f"})
    )
    vocabulary = load_vocabulary(str(path))
    assert not vocabulary.features.signs
    texts = ["the,\u088fthe the, the,\u088f".encode(), "e,\u088f,".encode()]
    fast, slow = Gigatoken(vocabulary).encode(texts), Tokenizers(vocabulary).encode(texts)
    assert 262 in slow[0]
    assert np.array_equal(fast[0], slow[0])


def test_only_documents_that_spell_the_end_of_text_are_encoded_by_themselves(tokenizer: Path) -> None:
    vocabulary = load_vocabulary(str(tokenizer))
    texts = [text.encode().replace(b"<|endoftext|>", b"tide") for text in make_documents(40)]
    texts[7] += b" <|endoftext|> the"
    texts[21] = b"<|endoftext|>"
    alone = list[bytes]()

    class Watched(Gigatoken):
        def _one_by_one(self, texts: Sequence[bytes]) -> tuple[Ids, Ends]:
            alone.extend(texts)
            return super()._one_by_one(texts)

    fast, slow = Watched(vocabulary).encode(texts), Tokenizers(vocabulary).encode(texts)
    assert alone == [texts[7], texts[21]]
    assert np.array_equal(fast[0], slow[0])
    assert np.array_equal(fast[1], slow[1])


def test_an_encoder_whose_cache_has_grown_is_replaced_and_gives_the_same_ids(tokenizer: Path) -> None:
    vocabulary = load_vocabulary(str(tokenizer))
    texts = [text.encode() for text in make_documents(9)]
    texts = [text.replace(b"<|endoftext|>", b"tide") for text in texts]
    encoder, kept = Gigatoken(vocabulary, cache=-(1 << 40)), Gigatoken(vocabulary, cache=1 << 40)
    libraries = set()
    for _ in range(9):
        ids, ends = encoder.encode(texts)
        libraries.add(encoder._joined)
        assert np.array_equal(ids, kept.encode(texts)[0])
        assert len(ends) == len(texts)
    assert len(libraries) == 3


TEETH = """
import sys
import numpy as np
from lowtide.prepare.tokenizers.encoders import Gigatoken
from lowtide.prepare.tokenizers.vocabulary import load_vocabulary
from lowtide.units import MIB

encoder, left_behind = Gigatoken(load_vocabulary(sys.argv[1]), cache=96 * MIB), []

def replaced_with(cache):
    encoder._joined.cache = np.ones(cache * MIB, np.uint8)  # goes when the library goes
    for _ in range(4):  # one look
        encoder.encode([b"the tide"])
    left_behind.append(np.ones(8 * MIB, np.uint8))
    return not hasattr(encoder._joined, "cache")

print([replaced_with(cache) for cache in (0, 128, 128, 128, 128, 72, 32)])
"""


def test_what_each_cache_leaves_behind_does_not_raise_the_bound_of_the_next(tokenizer: Path) -> None:
    done = subprocess.run([sys.executable, "-c", TEETH, str(tokenizer)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str([False, True, True, True, True, True, False])


def changed(tokenizer: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    whole = json.loads(tokenizer.read_text())
    change(whole)
    path = tokenizer.parent / "changed.json"
    path.write_text(json.dumps(whole))
    return path


ADDED = {"id": 262, "content": "tide", "special": False, "normalized": False, "lstrip": False, "rstrip": False}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda one: one.update(normalizer={"type": "NFC"}), "has a normaliser"),
        (lambda one: one["added_tokens"].append(ADDED | {"single_word": True}), "added tokens with single_word"),
        (lambda one: one["added_tokens"].append(ADDED | {"single_word": False, "lstrip": True}), "with lstrip"),
        (lambda one: one["pre_tokenizer"].update(add_prefix_space=True), "cuts words in a way"),
        (lambda one: one.update(pre_tokenizer={"type": "Whitespace"}), "cuts words in a way"),
        (lambda one: one["model"].update(unk_token="e"), "not a plain BPE"),
    ],
)
def test_a_tokenizer_that_does_more_is_left_to_tokenizers(
    tokenizer: Path, change: Callable[[dict[str, Any]], object], told: str
) -> None:
    choice = choose_encoder(load_vocabulary(str(changed(tokenizer, change))))
    assert choice.name == "tokenizers"
    assert told in choice.notes[0]


def test_plain_added_tokens_are_the_same_to_both(tokenizer: Path) -> None:
    path = changed(tokenizer, lambda one: one["added_tokens"].append(ADDED | {"single_word": False}))
    vocabulary = load_vocabulary(str(path))
    assert choose_encoder(vocabulary).name == "gigatoken"
    texts = [text.encode() for text in make_documents(20)] + [b"tidetide atide tides"]
    assert np.array_equal(Gigatoken(vocabulary).encode(texts)[0], Tokenizers(vocabulary).encode(texts)[0])


def test_the_first_difference_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The code points that differ, unknown to the encoder: the running check sees them."""
    monkeypatch.setattr(encoders, "unlike_places", lambda _: np.empty(0, np.int64))
    monkeypatch.setattr(encoders, "CHECKED_EVERY", 1)
    encoder = Gigatoken(telling(GPT2))
    encoder.encode([b"fine"])
    with pytest.raises(FormatError, match=r"gigatoken: expected the .* --tokenizer-engine tokenizers"):
        encoder.encode(["a\U000323b0a \U000323b01".encode()])
