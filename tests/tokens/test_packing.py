"""``cut="packed"``: every token once per epoch, in whole pieces; an order that is a pure function; accounts."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.formats.conftest import TokenFiles
from tests.tokens.test_documents import corpus, ends_of

import lowtide
from lowtide.reading.documents import packing
from lowtide.reading.documents.packing import best_fit

Row = tuple[NDArray[Any], NDArray[Any], Any]


def pieces_of_corpus(ids: NDArray[np.uint16], ends: NDArray[np.int64], length: int) -> Counter[bytes]:
    found: Counter[bytes] = Counter()
    for first, last in zip([0, *ends[:-1].tolist()], ends.tolist(), strict=True):
        for start in range(first, last, length):
            found[ids[start : min(start + length, last)].astype(np.int64).tobytes()] += 1
    return found


def pieces_of_batch(x: Any, docs: Any) -> Counter[bytes]:
    found: Counter[bytes] = Counter()
    bounds = sorted(set(docs.cu_seqlens.tolist()))
    flat, ids = x.reshape(-1), docs.ids.reshape(-1)
    for first, last in pairwise(bounds):
        assert len(set(ids[first:last].tolist())) == 1
        if ids[first] >= 0:
            found[flat[first:last].tobytes()] += 1
    return found


def check_row_rules(x: Any, y: Any, docs: Any, padding: int) -> None:
    padded = docs.ids == -1
    assert (x[padded] == padding).all()
    assert not docs.loss_mask[padded].any()
    assert (docs.positions[padded] == 0).all()
    for row in padded:
        assert not (row[:-1] & ~row[1:]).any(), "padding stands at the end of a row"
    inner = docs.loss_mask[:, :-1]
    assert (y[:, :-1][inner] == x[:, 1:][inner]).all()
    assert (docs.ids[:, :-1][inner] == docs.ids[:, 1:][inner]).all()
    assert (y[~docs.loss_mask] == padding).all()
    numbers = docs.ids[docs.ids >= 0]
    assert len(numbers) == 0 or sorted(set(numbers.tolist())) == list(range(int(numbers.max()) + 1))


@pytest.mark.slow
@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 10**6),
    tokens=st.integers(2, 400),
    length=st.integers(1, 40),
    share=st.sampled_from([0.01, 0.1, 0.5, 1.0]),
    by=st.sampled_from(["eot", "bos"]),
    batch=st.integers(1, 7),
    border=st.integers(0, 400),
)
def test_an_epoch_has_every_token_of_every_document_once_in_whole_pieces(
    tmp_path: Path, seed: int, tokens: int, length: int, share: float, by: str, batch: int, border: int
) -> None:
    ids = corpus(np.random.default_rng(seed), tokens, share=share)
    border = min(border, tokens)  # of two files, so that documents cross it
    files = TokenFiles(tmp_path)
    paths = [files.raw(f"{seed}-{k}.bin", part) for k, part in enumerate((ids[:border], ids[border:])) if len(part)]
    with lowtide.open_tokens(paths, dtype="uint16", **{by: 0}) as opened:  # type: ignore[arg-type]
        windows = opened.windows(length, cut="packed", documents=True)
        wanted = pieces_of_corpus(ids, ends_of(ids, by), length)
        for order in ("sequential", "shuffled"):
            feed = windows.batches(batch, order=order, seed=seed)
            seen: Counter[bytes] = Counter()
            rows = 0
            while rows + batch <= len(windows) or (order == "sequential" and rows < len(windows)):
                x, y, docs = next(feed)
                check_row_rules(x, y, docs, padding=0)
                seen += pieces_of_batch(x, docs)
                rows += len(x)
            if rows == len(windows):
                assert seen == wanted
            else:
                assert seen <= wanted
        account = windows.account()
        assert (account.used, account.cut) == (tokens, 0)
        assert account.padded == len(windows) * length - tokens
    for path in paths:
        path.unlink()


@given(st.lists(st.integers(1, 12), min_size=1, max_size=60))
def test_best_fit_is_that_of_the_textbook(sizes: list[int]) -> None:
    order, counts = best_fit(np.array(sizes, np.int64), 12)
    assert sorted(order.tolist()) == list(range(len(sizes)))
    bounds = np.cumsum(counts).tolist()
    mine = sorted(sum(sizes[k] for k in order[a:b].tolist()) for a, b in zip([0, *bounds], bounds, strict=False))
    rows: list[int] = []
    for size in sorted(sizes, reverse=True):
        fitting = [row for row in range(len(rows)) if rows[row] + size <= 12]
        if fitting:
            rows[max(fitting, key=lambda row: rows[row])] += size
        else:
            rows.append(size)
    assert mine == sorted(rows)


@pytest.fixture(scope="module")
def long_corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """200,000 tokens in documents of a median of 60."""
    random = np.random.default_rng(3)
    ids = random.integers(1, 60_000, 200_000).astype(np.uint16)
    lengths = np.exp(random.normal(np.log(60), 1.0, 5_000)).astype(np.int64) + 1
    ends = np.cumsum(lengths)
    ids[ends[ends <= len(ids)] - 1] = 0
    path = tmp_path_factory.mktemp("packed") / "x.bin"
    ids.tofile(path)
    return path


def open_long(path: Path) -> lowtide.Tokens:
    return lowtide.open_tokens(path, dtype="uint16", eot=0)


def test_ranks_together_have_the_rows_of_one_reader_and_a_state_goes_on_with_another_world(long_corpus: Path) -> None:
    with open_long(long_corpus) as tokens:
        windows = tokens.windows(128, cut="packed")
        whole = windows.batches(12, seed=5)
        ranks = [windows.batches(12, seed=5, rank=rank, world=3) for rank in range(3)]
        for _ in range(5):
            x, y = next(whole)
            parts = [next(feed) for feed in ranks]
            assert np.array_equal(x, np.concatenate([part[0] for part in parts]))
            assert np.array_equal(y, np.concatenate([part[1] for part in parts]))
        resumed = windows.batches(20, seed=5, rank=1, world=2)
        resumed.load_state_dict(ranks[0].state_dict())
        wide = windows.batches(20, seed=5)
        wide.load_state_dict(whole.state_dict())
        assert np.array_equal(next(resumed)[0], next(wide)[0][10:])


def test_every_epoch_has_its_own_order_of_the_same_rows(long_corpus: Path) -> None:
    with open_long(long_corpus) as tokens:
        windows = tokens.windows(256, cut="packed")
        feed = windows.batches(len(windows), seed=1)
        first, second = (np.array(next(feed)[0]) for _ in range(2))
        assert not np.array_equal(first, second)
        assert sorted(row.tobytes() for row in first) == sorted(row.tobytes() for row in second)


def test_a_local_shuffle_gives_every_packed_row_once_and_is_part_of_the_state(long_corpus: Path) -> None:
    with open_long(long_corpus) as tokens:
        windows = tokens.windows(256, cut="packed")
        local = windows.batches(len(windows), seed=1, locality=("16KiB", "1KiB"))
        assert sorted(map(bytes, next(local)[0])) == sorted(map(bytes, next(windows.batches(len(windows)))[0]))
        with pytest.raises(lowtide.StateError, match=r"expected locality=None, got \[16384, 1024\]"):
            windows.batches(8, seed=1).load_state_dict(local.state_dict())
        with pytest.raises(ValueError, match=r"locality: expected at least one window \(512 bytes\), got 100"):
            windows.batches(8, locality=100)


def test_a_state_of_another_cut_or_other_boundaries_is_refused(long_corpus: Path) -> None:
    with open_long(long_corpus) as tokens:
        packed = tokens.windows(128, cut="packed").batches(4)
        stride = tokens.windows(128).batches(4)
        with pytest.raises(lowtide.StateError, match="cut"):
            stride.load_state_dict(packed.state_dict())
        with pytest.raises(lowtide.StateError, match="cut"):
            packed.load_state_dict(stride.state_dict())
        with (
            lowtide.open_tokens(long_corpus, dtype="uint16", bos=0) as other,
            pytest.raises(lowtide.StateError, match="documents_by='bos=0', got 'eot=0'"),
        ):
            other.windows(128, cut="packed").batches(4).load_state_dict(packed.state_dict())


def test_where_names_every_document_of_a_packed_row(long_corpus: Path) -> None:
    with open_long(long_corpus) as tokens:
        feed = tokens.windows(128, cut="packed", documents=True).batches(6, seed=2)
        x, _, docs = feed[7]
        for row, numbers, place in zip(x, docs.ids, feed.where(7), strict=True):
            assert (place.file, place.offset) == place.documents[0][:2]
            texts = [np.fromfile(one.file, "<u2", one.tokens, offset=one.offset) for one in place.documents]
            assert np.array_equal(np.concatenate(texts), row[numbers >= 0])


def test_the_packing_is_the_same_when_it_was_made_in_smaller_steps(
    long_corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Groups are a matter of tokens and pieces, not of how many pieces are made at a time."""
    monkeypatch.setattr(packing, "GROUP_TOKENS", 10_000)
    rows = []
    for pieces in (65_536, 97):
        monkeypatch.setattr(packing, "PIECES", pieces)
        for kept in (long_corpus.parent / ".lowtide").glob("packed-96-*"):
            kept.unlink()
        with open_long(long_corpus) as tokens:
            windows = tokens.windows(96, cut="packed")
            rows.append(np.array(next(windows.batches(len(windows), order="sequential"))[0]))
    assert np.array_equal(rows[0], rows[1])


def test_padding_is_small_and_the_account_names_what_one_document_per_row_would_pad(long_corpus: Path) -> None:
    with open_long(long_corpus) as tokens:
        packed, stride = tokens.windows(256, cut="packed").account(), tokens.windows(256).account()
    assert packed.padded_share < 0.03
    assert packed.cut == 0
    assert stride.padded == 0
    assert stride.cut == 200_000 - stride.windows * 256
    for account in (packed, stride):
        assert account.one_per_row_padded is not None
        assert 0.4 < account.one_per_row_padded < 0.9
        assert account.most_documents is not None
        assert f"at most {account.most_documents} in one window" in str(account)
        assert account.to_dict()["used_share"] == account.used / 200_000


def test_an_account_without_documents_still_counts_tokens(tmp_path: Path) -> None:
    path = TokenFiles(tmp_path).raw("x.bin", range(100))
    with lowtide.open_tokens(path, dtype="uint16") as tokens:
        account = tokens.windows(8).account()
    assert (account.windows, account.used, account.cut, account.padded) == (11, 88, 12, 0)
    assert account.most_documents is account.one_per_row_padded is None


def test_a_corpus_of_one_endless_document_is_cut_into_rows(tmp_path: Path) -> None:
    ids = np.arange(1, 1_001)
    path = TokenFiles(tmp_path).datatrove("x.ds", [ids.tolist()])
    with lowtide.open_tokens(path) as tokens:
        windows = tokens.windows(64, cut="packed", documents=True)
        assert len(windows) == 16
        x, y, docs = next(windows.batches(16, order="sequential"))
        found = x[docs.ids >= 0]
        assert sorted(found.tolist()) == ids.tolist()
        assert (y[docs.loss_mask] == x[docs.loss_mask] + 1).all()
        assert int((~docs.loss_mask & (docs.ids >= 0)).sum()) == 1  # the document's last token alone


def test_tokens_that_changed_behind_their_index_are_noticed(tmp_path: Path) -> None:
    ids = np.tile(np.array([5, 6, 7, 0], np.uint16), 50_000)
    path = TokenFiles(tmp_path).raw("x.bin", ids)
    with lowtide.open_tokens(path, dtype="uint16", eot=0) as tokens:
        tokens.windows(64, cut="packed")
    ids[9_000:9_400] = 9  # between the blocks that a fingerprint looks at
    with path.open("r+b") as file:
        file.write(ids.tobytes())
    with lowtide.open_tokens(path, dtype="uint16", eot=0) as tokens:
        windows = tokens.windows(64, cut="packed")
        with pytest.raises(lowtide.FormatError, match=r"expected eot=0 at the end of a document .*got 9"):
            for _ in windows.batches(16, order="sequential"):
                pass


@pytest.mark.parametrize("vocab", [50_257, 40])
def test_ids_beyond_the_vocabulary_are_refused_where_they_stand(tmp_path: Path, vocab: int) -> None:
    path = TokenFiles(tmp_path).raw("x.bin", [3, 4, 0, 41, 0, 5, 0])
    with lowtide.open_tokens(path, dtype="uint16", eot=0, vocab=vocab) as tokens:
        feed = tokens.windows(4, cut="packed").batches(1, order="sequential")
        if vocab > 41:
            assert len(list(feed)) == 2
        else:
            with pytest.raises(lowtide.FormatError, match="got 41 at byte 6"):
                list(feed)


@pytest.mark.parametrize("length", [2**31, 2**63, 2**70])
def test_a_row_longer_than_positions_can_count_is_refused(long_corpus: Path, length: int) -> None:
    told = rf"length: expected at most 2147483647 .*, got {length}\. Use length=1024"
    with open_long(long_corpus) as tokens, pytest.raises(ValueError, match=told):
        tokens.windows(length, cut="packed")
