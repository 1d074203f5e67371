"""What formats know - documents, ids that begin and end them, emptiness - reaches the Tokens a user holds."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

import lowtide

if TYPE_CHECKING:
    from tests.formats.conftest import TokenFiles


def ends(tokens: lowtide.Tokens) -> list[int]:
    blocks = tokens.documents()
    assert blocks is not None
    return [int(end) for block in blocks for end in block]


def test_a_leading_empty_document_is_kept(token_files: TokenFiles) -> None:
    path = token_files.megatron("m", [[], [7] * 10, []])
    with lowtide.open_tokens(path) as tokens:
        assert ends(tokens) == [0, 10, 10]


def test_every_document_end_belongs_to_one_part_of_a_split(token_files: TokenFiles) -> None:
    path = token_files.megatron("m", [[], [7] * 10, [8] * 5, [9] * 5])
    with lowtide.open_tokens(path) as tokens:
        train, val = tokens.split(val=10)
        assert (ends(train), ends(val)) == ([0, 10], [5, 10])


def test_ids_that_begin_and_end_documents_reach_splits_and_pickles(token_files: TokenFiles) -> None:
    path = token_files.raw("a.bin", list(range(100)))
    with lowtide.open_tokens(path, dtype="uint16", bos=1, eot=0, vocab=100) as tokens:
        train, val = tokens.split(val=0.5)
        for part in (tokens, train, val, pickle.loads(pickle.dumps(val))):
            assert (part.bos, part.eot, part.vocab) == (1, 0, 100)
    token_files.manifest([("a.bin", 100)], bos=5)
    with lowtide.open_tokens(path) as tokens:
        assert (tokens.bos, tokens.eot) == (5, None)
    with lowtide.open_tokens(path, bos=6) as tokens:
        assert tokens.bos == 6
    with pytest.raises(ValueError, match="bos: expected 0 or more"):
        lowtide.open_tokens(path, bos=-1)


def test_llm_c_shards_have_no_end_of_text_unless_it_is_stated(token_files: TokenFiles) -> None:
    path = token_files.llmc("fineweb_train_000001.bin", [1, 50_256, 2])
    with lowtide.open_tokens(path) as tokens:
        assert (tokens.eot, tokens.bos) == (None, None)
    with lowtide.open_tokens(path, bos=50_256) as tokens:
        assert (tokens.eot, tokens.bos) == (None, 50_256)


def test_an_empty_corpus_has_a_fingerprint(tmp_path: Path) -> None:
    np.save(tmp_path / "none.npy", np.zeros(0, "u2"))
    np.save(tmp_path / "one.npy", np.zeros(1, "u2"))
    with lowtide.open_tokens(tmp_path / "none.npy") as none, lowtide.open_tokens(tmp_path / "one.npy") as one:
        assert none.fingerprint()["tokens"] == 0
        assert none.fingerprint() == none.fingerprint()
        assert none.fingerprint()["blocks"] != one.fingerprint()["blocks"]


@pytest.mark.parametrize("dtype", [">i8", ">u2", ">i4"])
def test_batches_in_another_byte_order_are_refused(token_files: TokenFiles, dtype: str) -> None:
    with (
        lowtide.open_tokens(token_files.raw("a.bin", list(range(100))), dtype="uint16") as tokens,
        pytest.raises(ValueError, match=rf"native integer type for tokens, got {dtype}\. Use dtype='int64'"),
    ):
        tokens.batches(2, length=4, dtype=dtype)


def test_big_endian_tokens_on_disk_still_give_native_batches(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(100, dtype=">u2"))
    with lowtide.open_tokens(tmp_path / "a.npy") as tokens:
        x, y = next(tokens.batches(1, length=4, order="sequential"))
        assert x.dtype.isnative
        assert (x.tolist(), y.tolist()) == ([[0, 1, 2, 3]], [[1, 2, 3, 4]])
