"""Tokens: slices, splits, vocabularies and documents; and one line that says what to do for every wrong input."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.feeds import FORMATS, STRATEGIES, numbered, raw_file
from tests.formats.conftest import TokenFiles

import lowtide

IDS = numbered(5003)
MIB = 1 << 20


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("name", FORMATS)
def test_tokens_are_indexed_as_numpy_would(tmp_path: Path, name: str, strategy: str) -> None:
    made = FORMATS[name](TokenFiles(tmp_path), IDS)
    with lowtide.open_tokens(made.source, strategy=strategy, **made.keywords) as tokens:
        assert len(tokens) == len(IDS)
        assert tokens.nbytes == len(IDS) * tokens.dtype.itemsize
        keys: list[Any] = [slice(None), slice(1000, 2000), slice(-7, None), slice(None, None, -3), [5, 1, 5], 7, -1]
        keys += [IDS % 7 == 0, slice(3, 3), np.arange(0, 5000, 13), Ellipsis]
        for key in keys:
            found = tokens[key]
            assert found.dtype == tokens.dtype
            assert np.array_equal(found, IDS[key])
        owned = tokens[10:20]
        owned[:] = 0
        assert np.array_equal(tokens[10:20], IDS[10:20])


def test_an_index_outside_the_tokens_is_refused(tmp_path: Path) -> None:
    with lowtide.open_tokens(raw_file(tmp_path, IDS), dtype="uint16") as tokens:
        train, val = tokens.split(val=100)
        for part, count in ((tokens, 5003), (train, 4903), (val, 100)):
            for outside in (count, -count - 1):
                told = f"index: expected a token from -{count} to {count - 1}, got {outside}. There are {count} tokens."
                for key in (outside, [0, outside]):
                    with pytest.raises(IndexError, match=rf"^{re.escape(told)}$"):
                        part[key]


@pytest.mark.parametrize("key", [True, [0.5], "a", np.zeros((2, 2))])
def test_what_is_not_an_index_of_tokens_is_refused_without_a_word_of_rows(tmp_path: Path, key: Any) -> None:
    with lowtide.open_tokens(raw_file(tmp_path, IDS), dtype="uint16") as tokens:
        with pytest.raises(IndexError, match=r"index: expected .*token.*, got ") as told:
            tokens[key]
        assert "row" not in str(told.value)


# Splits


@pytest.mark.parametrize(
    ("val", "count"), [(0.005, 25), (0.5, 2502), (1, 1), (5002, 5002), (np.int64(9), 9), (0.9999, 5002)]
)
def test_val_is_the_tail_by_share_or_by_number(tmp_path: Path, val: Any, count: int) -> None:
    with lowtide.open_tokens(raw_file(tmp_path, IDS), dtype="uint16", vocab=50_000, eot=3) as tokens:
        train, held_out = tokens.split(val=val)
        assert (len(train), len(held_out)) == (len(IDS) - count, count)
        assert np.array_equal(train[:], IDS[: len(IDS) - count])
        assert np.array_equal(held_out[:], IDS[len(IDS) - count :])
        assert (held_out.vocab, held_out.eot) == (50_000, 3)


def test_windows_of_a_split_stay_inside_it(tmp_path: Path) -> None:
    ids = np.arange(5003)
    with lowtide.open_tokens(raw_file(tmp_path, ids), dtype="uint16") as tokens:
        train, val = tokens.split(val=1003)
        inner, _ = val.split(val=0.25)  # a split of a split
        for part, first, last in ((train, 0, 4000), (val, 4000, 5003), (inner, 4000, 4752)):
            for order in ("shuffled", "random"):
                feed = part.batches(50, length=7, order=order)
                for _ in range(40):
                    x, y = next(feed)
                    assert first <= x.min()
                    assert y.max() < last
            batches = list(part.batches(50, length=7, order="sequential"))
            joined = np.concatenate([y.reshape(-1) for _, y in batches])
            assert joined.tolist() == list(range(first + 1, last))


@pytest.mark.parametrize("val", [0, 0.0, 5003, 9999, 1.0, 1.5, -0.1, -3, float("nan"), float("inf"), 1e-9])
def test_a_split_that_leaves_nothing_is_refused(tmp_path: Path, val: Any) -> None:
    words = r"split: expected 1 to 5002 tokens for val, got.*Use a share such as val=0.1"
    tokens = lowtide.open_tokens(raw_file(tmp_path, IDS), dtype="uint16")
    with pytest.raises(ValueError, match=words):
        tokens.split(val=val)


@pytest.mark.parametrize("val", ["0.1", None, True, [0.1]])
def test_a_split_by_something_else_than_a_number_is_refused(tmp_path: Path, val: Any) -> None:
    tokens = lowtide.open_tokens(raw_file(tmp_path, IDS), dtype="uint16")
    with pytest.raises(TypeError, match=r"split: expected a number for val, got \w+. Use a share"):
        tokens.split(val=val)


def test_splits_and_feeds_share_one_budget(tmp_path: Path) -> None:
    with lowtide.open_tokens(raw_file(tmp_path, IDS), dtype="uint16", budget="1MiB") as tokens:
        feeds = [part.batches(64, length=64) for part in tokens.split(val=0.3)]
        held: list[Any] = []
        with pytest.raises(lowtide.BudgetError):
            for _ in range(100):
                held += [next(feed) for feed in feeds]
        assert tokens.store.budget.held <= MIB
        held.clear()
        next(feeds[0])


def test_closing_ends_splits_and_feeds_and_leaves_batches_alone(tmp_path: Path, no_lost_descriptors: None) -> None:
    tokens = lowtide.open_tokens(raw_file(tmp_path, np.arange(5003)), dtype="uint16")
    train, val = tokens.split(val=0.3)
    feed = train.batches(8, length=16)
    x, y = next(feed)
    tokens.close()
    assert np.array_equal(x[:, 1:], y[:, :-1])
    uses: list[Callable[[], Any]] = [
        lambda: next(feed),
        lambda: val[3],
        lambda: feed[0],
        lambda: train.batches(8, length=16)[0],
    ]
    for use in uses:
        with pytest.raises(ValueError, match=r"expected an open store, got a closed one. Open it again"):
            use()
    tokens.close()


# Vocabularies


def with_an_id(directory: Path, token: int, found: int, dtype: str = "<u2") -> Path:
    ids = np.arange(1000) % 500
    ids[token] = found
    return raw_file(directory, ids, dtype=dtype)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(
    ("dtype", "found"), [("<u2", 500), ("<u2", 65_535), ("<i4", -1), ("<i8", -(2**40)), ("<u4", 2**31)]
)
def test_an_id_beyond_the_vocabulary_is_refused_where_it_stands(
    tmp_path: Path, dtype: str, found: int, strategy: str
) -> None:
    path = with_an_id(tmp_path, 777, found, dtype)
    offset = 777 * np.dtype(dtype).itemsize
    words = rf"{path}: expected ids from 0 to 499 \(vocab=500\), got {found} at byte {offset}\. Check the dtype"
    with lowtide.open_tokens(path, dtype=dtype, vocab=500, strategy=strategy) as tokens:
        for key in (777, slice(700, 900), slice(900, 700, -1), [3, 777], np.arange(1000) > 500):
            with pytest.raises(lowtide.FormatError, match=words):
                tokens[key]
        assert np.array_equal(tokens[:777], np.arange(777) % 500)
        _, val = tokens.split(val=300)
        with pytest.raises(lowtide.FormatError, match=words):
            val[:]
        feed = tokens.batches(4, length=10, order="sequential")
        seen = 0
        with pytest.raises(lowtide.FormatError, match=words):
            for x, y in feed:
                assert x.max() < 500
                assert y.max() < 500
                seen += 1
        assert (seen, feed.step) == (19, 19)
        with pytest.raises(lowtide.FormatError, match=words):
            next(feed)  # it stays refused, and nothing is skipped in silence
        with pytest.raises(lowtide.FormatError, match=words):
            feed[19]
        assert feed[20][0].shape == (4, 10)
        shuffled = tokens.batches(64, length=10)
        with pytest.raises(lowtide.FormatError, match=words):
            for _ in range(3):
                next(shuffled)
        assert tokens.store.pool.lent <= 2  # x, y of the loop above; nothing of what was refused


def test_the_largest_id_of_the_vocabulary_is_fine_and_a_vocabulary_may_exceed_the_dtype(tmp_path: Path) -> None:
    path = with_an_id(tmp_path, 777, 65_535)
    for vocab in (65_536, 10**9):
        with lowtide.open_tokens(path, dtype="uint16", vocab=vocab) as tokens:
            assert tokens[777] == 65_535


def test_a_manifest_states_the_vocabulary_and_the_caller_may_overrule_it(tmp_path: Path) -> None:
    path = with_an_id(tmp_path, 777, 500)
    TokenFiles(tmp_path).manifest([(path.name, 1000)], vocab=500, eot=7)
    with lowtide.open_tokens(tmp_path) as tokens:
        assert (tokens.vocab, tokens.eot) == (500, 7)
        with pytest.raises(lowtide.FormatError, match="vocab=500"):
            tokens[:]
    with lowtide.open_tokens(tmp_path, vocab=501, eot=0) as tokens:
        assert tokens[777] == 500
        assert tokens.eot == 0


@pytest.mark.parametrize(("name", "value"), [("vocab", 0), ("vocab", -5), ("eot", -1)])
def test_a_vocabulary_or_eot_out_of_range_is_refused(tmp_path: Path, name: str, value: int) -> None:
    with pytest.raises(ValueError, match=f"{name}: expected [01] or more, got {value}"):
        lowtide.open_tokens(raw_file(tmp_path, IDS), dtype="uint16", **{name: value})  # type: ignore[arg-type]


# Documents


def test_documents_are_had_where_the_format_knows_them_and_cut_at_a_splits_border(tmp_path: Path) -> None:
    lengths = [3, 5, 2, 7, 4]
    path = TokenFiles(tmp_path).datatrove("x.ds", [list(range(length)) for length in lengths])
    with lowtide.open_tokens(path) as tokens:
        ends = tokens.documents()
        assert ends is not None
        assert np.concatenate(list(ends)).tolist() == [3, 8, 10, 17, 21]
        train, val = tokens.split(val=9)  # border at token 12, inside the fourth document
        assert [np.concatenate(list(part.documents() or [])).tolist() for part in (train, val)] == [[3, 8, 10], [5, 9]]
    with lowtide.open_tokens(raw_file(tmp_path, IDS), dtype="uint16") as plain:
        assert plain.documents() is None


# Bad input: one line that says what to do


@pytest.mark.parametrize(
    ("count", "order", "words"),
    [
        (63, "shuffled", r"expected 64 tokens or more for length=32 \(shuffled\), got 63. Use length=31 or less"),
        (32, "random", r"expected 33 tokens or more for length=32 \(random\), got 32. Use length=31 or less"),
        (1, "sequential", r"expected 2 tokens or more for length=32 \(sequential\), got 1. Use more data"),
        (1, "shuffled", r"got 1. Use more data"),
    ],
)
def test_a_corpus_shorter_than_a_window_is_refused_with_the_longest_that_fits(
    tmp_path: Path, count: int, order: str, words: str
) -> None:
    with lowtide.open_tokens(raw_file(tmp_path, IDS[:count]), dtype="uint16") as tokens:
        with pytest.raises(lowtide.FormatError, match=words):
            tokens.batches(4, length=32, order=order)
        if "length=" in words.partition("Use")[2]:
            next(tokens.batches(4, length=31, order=order))
    with lowtide.open_tokens(raw_file(tmp_path, IDS[: count + 1]), dtype="uint16") as tokens:
        next(tokens.batches(4, length=32 if count > 1 else 1, order=order))


def test_a_split_too_short_for_a_window_is_refused_at_its_own_size(tmp_path: Path) -> None:
    with lowtide.open_tokens(raw_file(tmp_path, IDS), dtype="uint16") as tokens:
        _, val = tokens.split(val=25)
        with pytest.raises(lowtide.FormatError, match=r"expected 64 tokens or more.*got 25. Use length=12 or less"):
            val.batches(4, length=32)


def test_a_header_that_lies_is_refused_with_both_sizes(tmp_path: Path) -> None:
    path = TokenFiles(tmp_path).llmc("fineweb_train_000001.bin", list(range(100)), count=101)
    with pytest.raises(lowtide.FormatError, match=r"expected 1226 bytes \(101 tokens.*got 1224"):
        lowtide.open_tokens(path)


def test_a_missing_file_an_empty_one_and_a_headerless_one_without_dtype_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"train\.bin"):
        lowtide.open_tokens(tmp_path / "train.bin", dtype="uint16")
    (tmp_path / "train.bin").touch()
    with pytest.raises(lowtide.FormatError, match=r"train\.bin.*(empty|0 bytes)"):
        lowtide.open_tokens(tmp_path / "train.bin", dtype="uint16")
    raw_file(tmp_path, IDS, "train.bin")
    with pytest.raises(lowtide.FormatError, match="expected dtype="):
        lowtide.open_tokens(tmp_path / "train.bin")


def test_every_refusal_is_one_line(tmp_path: Path) -> None:
    path = raw_file(tmp_path, IDS)
    with lowtide.open_tokens(path, dtype="uint16", vocab=10) as tokens:
        asks: list[Any] = [
            lambda: tokens[:],
            lambda: tokens.split(val=0),
            lambda: tokens.batches(4, length=4000),
            lambda: tokens.batches(5, length=8, rank=0, world=2),
            lambda: tokens.batches(4, length=8).load_state_dict({}),
        ]
        for ask in asks:
            with pytest.raises((ValueError, IndexError)) as caught:
                ask()
            text = str(caught.value)
            assert "\n" not in text
            assert "expected" in text
            assert "got" in text
            assert text.endswith(".")


def test_tokens_are_iterated_one_by_one_with_few_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t.bin"
    expected = np.arange(100_000, dtype=np.uint16)
    expected.tofile(path)
    offsets: list[int] = []
    preadv = os.preadv

    def counted(number: int, buffers: Any, offset: int, flags: int = 0) -> int:
        offsets.append(offset)
        return preadv(number, buffers, offset, flags)

    monkeypatch.setattr(os, "preadv", counted)
    monkeypatch.setenv("LOWTIDE_ENGINE", "python")  # the engine that makes this call
    assert list(lowtide.open_tokens(path, dtype="uint16")) == expected.tolist()
    assert len(offsets) == 2
