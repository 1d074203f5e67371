"""``documents=True``: positions, ids, runs and masks agree with the tokens, however documents are known."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.formats.conftest import TokenFiles

import lowtide

Ends = NDArray[np.int64]


def corpus(random: np.random.Generator, tokens: int, *, share: float, mark: int = 0) -> NDArray[np.uint16]:
    """Ids with a mark among them, at least one."""
    ids = random.integers(1, 60_000, tokens).astype(np.uint16)
    ids[random.random(tokens) < share] = mark
    ids[random.integers(0, tokens)] = mark
    return ids


def ends_of(ids: NDArray[np.uint16], by: str) -> Ends:
    found = np.flatnonzero(ids == 0) + (by == "eot")
    return np.array(sorted({*found.tolist(), len(ids)} - {0}), np.int64)


def check_docs(x: Any, y: Any, docs: Any, starts: list[int], ends: Ends) -> None:
    """Docs of windows that begin at these tokens, one token at a time from where documents end."""
    length = x.shape[1]
    number, bounds = -1, [0]
    for row, start in enumerate(starts):
        for column in range(length):
            begins = column == 0 or bool(np.isin(start + column, ends))
            if begins:
                number += 1
                position = 0
                if row or column:
                    bounds.append(row * length + column)
            assert docs.ids[row, column] == number
            assert docs.positions[row, column] == position
            assert docs.loss_mask[row, column] == (not np.isin(start + column + 1, ends))
            position += 1
    bounds.append(x.size)
    assert docs.cu_seqlens[: len(bounds)].tolist() == bounds
    assert (docs.cu_seqlens[len(bounds) :] == x.size).all()
    assert docs.max_seqlen == int(np.diff(bounds).max())
    assert docs.positions.dtype == docs.ids.dtype == docs.cu_seqlens.dtype == np.int32
    assert docs.loss_mask.dtype == np.bool_
    assert x.shape == y.shape == docs.positions.shape == docs.ids.shape == docs.loss_mask.shape


def most_runs(ends: Ends, tokens: int, length: int) -> int:
    return max(
        1 + int(((ends > start) & (ends < start + length)).sum()) for start in range(max(1, tokens - length + 1))
    )


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 10**6),
    tokens=st.integers(40, 300),
    length=st.integers(1, 20),
    share=st.sampled_from([0.01, 0.1, 0.5, 1.0]),
    by=st.sampled_from(["eot", "bos"]),
    order=st.sampled_from(["shuffled", "sequential", "random"]),
)
def test_documents_of_windows_at_a_stride_are_those_of_the_tokens(
    tmp_path: Path, seed: int, tokens: int, length: int, share: float, by: str, order: str
) -> None:
    random = np.random.default_rng(seed)
    ids = corpus(random, tokens, share=share)
    path = TokenFiles(tmp_path).raw(f"{seed}-{tokens}.bin", ids)
    ends = ends_of(ids, by)
    with lowtide.open_tokens(path, dtype="uint16", **{by: 0}) as opened:  # type: ignore[arg-type]
        feed = opened.windows(length, documents=True).batches(3, seed=seed, order=order)
        plain = opened.batches(3, length=length, seed=seed, order=order)
        for step in range(3):
            x, y, docs = next(feed)
            same_x, same_y = next(plain)
            assert np.array_equal(x, same_x)
            assert np.array_equal(y, same_y)
            starts = [place.offset // 2 for place in feed.where(step)]
            check_docs(x, y, docs, starts, ends)
            assert len(docs.cu_seqlens) == len(x) * most_runs(ends, tokens, length) + 1
            if order == "sequential" and step + 1 == len(feed):
                break
    path.unlink()


@pytest.mark.parametrize("format", ["datatrove", "megatron"])
def test_offsets_of_the_format_tell_documents_apart_without_any_id(tmp_path: Path, format: str) -> None:
    random = np.random.default_rng(4)
    lengths = [1, 40, 3, 3, 90, 7, 25, 1, 1, 60, 200, 9]
    texts = [random.integers(1, 900, length).tolist() for length in lengths]
    path = getattr(TokenFiles(tmp_path), format)("x.ds" if format == "datatrove" else "x", texts)
    ends = np.cumsum(lengths)
    with lowtide.open_tokens(path) as tokens:
        feed = tokens.windows(16, documents=True).batches(4, seed=2)
        for step in range(12):
            x, y, docs = next(feed)
            places = feed.where(step)
            shift = tokens.layout.extents[0].offset
            starts = [(place.offset - shift) // tokens.dtype.itemsize for place in places]
            check_docs(x, y, docs, starts, ends)


def test_documents_of_a_split_count_from_its_own_border(tmp_path: Path) -> None:
    ids = corpus(np.random.default_rng(5), 400, share=0.05)
    path = TokenFiles(tmp_path).raw("x.bin", ids)
    with lowtide.open_tokens(path, dtype="uint16", eot=0) as tokens:
        _, val = tokens.split(val=150)
        for x, y, docs in val.windows(16, documents=True).batches(2, order="sequential"):
            assert np.array_equal(docs.loss_mask, x != 0)
            assert x.shape == y.shape


@pytest.mark.parametrize("cut", ["stride", "packed"])
def test_a_batch_with_documents_is_one_buffer_and_stays_inside_the_budget(tmp_path: Path, cut: str) -> None:
    ids = corpus(np.random.default_rng(6), 50_000, share=0.01)
    path = TokenFiles(tmp_path).raw("x.bin", ids)
    with lowtide.open_tokens(path, dtype="uint16", eot=0, budget="2MiB") as tokens:
        windows = tokens.windows(256, cut=cut, documents=True)
        feed = windows.batches(64)
        held = next(feed)
        for _ in range(20):
            held = next(feed)
        assert held[0].shape == (64, 256)
        assert tokens.store.budget.peak <= feed.plan().anon <= 2 << 20
        with pytest.raises(lowtide.BudgetError, match="use a batch of"):
            windows.batches(4096)


def test_feeds_with_documents_cross_pickles_and_go_on_alike(tmp_path: Path) -> None:
    ids = corpus(np.random.default_rng(7), 5_000, share=0.02)
    path = TokenFiles(tmp_path).raw("x.bin", ids)
    with lowtide.open_tokens(path, dtype="uint16", eot=0) as tokens:
        for cut in ("stride", "packed"):
            feed = tokens.windows(32, cut=cut, documents=True).batches(4, seed=1)
            next(feed)
            other = pickle.loads(pickle.dumps(feed))
            for mine, theirs in zip(next(feed)[2], next(other)[2], strict=True):
                assert np.array_equal(mine, theirs)


def test_documents_are_found_by_id_in_bounded_blocks(tmp_path: Path) -> None:
    ids = corpus(np.random.default_rng(8), 3_000, share=0.01)
    path = TokenFiles(tmp_path).raw("x.bin", ids)
    for by in ("eot", "bos"):
        with lowtide.open_tokens(path, dtype="uint16", **{by: 0}) as tokens:  # type: ignore[arg-type]
            found = np.concatenate(list(tokens.documents() or []))
            assert found.tolist() == ends_of(ids, by).tolist()


@pytest.mark.parametrize("cut", ["stride", "packed"])
def test_without_an_id_or_offsets_documents_are_refused_with_the_way_out(tmp_path: Path, cut: str) -> None:
    path = TokenFiles(tmp_path).raw("x.bin", range(1, 100))
    with (
        lowtide.open_tokens(path, dtype="uint16") as tokens,
        pytest.raises(lowtide.FormatError, match="got neither offsets in the format nor an id"),
    ):
        tokens.windows(8, cut=cut, documents=True)


@pytest.mark.parametrize("mark", [0, 70_000])
@pytest.mark.parametrize("by", ["eot", "bos"])
def test_an_id_that_never_occurs_is_refused_with_the_number_of_tokens(tmp_path: Path, by: str, mark: int) -> None:
    path = TokenFiles(tmp_path).raw("x.bin", range(1, 100))
    with (
        lowtide.open_tokens(path, dtype="uint16", **{by: mark}) as tokens,  # type: ignore[arg-type]
        pytest.raises(lowtide.FormatError, match=rf"expected the id {mark} \({by}\).*got none among 99 tokens"),
    ):
        tokens.windows(8, cut="packed")


def test_an_unknown_cut_is_refused(tmp_path: Path) -> None:
    path = TokenFiles(tmp_path).raw("x.bin", range(1, 100))
    with (
        lowtide.open_tokens(path, dtype="uint16") as tokens,
        pytest.raises(ValueError, match="cut: expected one of stride, packed, got 'best'"),
    ):
        tokens.windows(8, cut="best")


def test_the_two_lines_of_the_docs_join_ids_with_cu_seqlens(tmp_path: Path) -> None:
    page = Path(__file__).parents[2] / "docs" / "documents.md"
    (lines,) = [block for block in page.read_text().split("```") if "docs.cu_seqlens < x.size" in block]
    padded = False
    lengths = np.random.default_rng(6).integers(5, 20, 200).tolist()
    path = TokenFiles(tmp_path).raw("x.bin", np.concatenate([[7] * length + [0] for length in lengths]))
    with lowtide.open_tokens(path, dtype="uint16", eot=0) as tokens:
        for cut in ("packed", "stride"):
            feed = tokens.windows(24, cut=cut, documents=True).batches(6, seed=3)
            for _ in range(20):
                x, _, docs = next(feed)
                known: dict[str, Any] = {"np": np, "x": x, "docs": docs}
                exec(lines.removeprefix("python"), known)
                runs = known["runs"]
                padded |= bool((docs.ids == -1).any())
                assert len(runs) == docs.ids.max() + 1
                for k, run in enumerate(runs.tolist()):
                    first, last = docs.cu_seqlens[run : run + 2].tolist()
                    assert np.flatnonzero(docs.ids.reshape(-1) == k).tolist() == list(range(first, last))
    assert padded, "padding between runs is what makes the two differ"


@pytest.mark.parametrize("files", [1, 3])
@pytest.mark.parametrize("strategy", ["read", "map", "remap", "advise"])
def test_every_strategy_finds_every_document(tmp_path: Path, strategy: str, files: int) -> None:
    """What is read in several calls - more files than one, or more than may be mapped at once - had only the marks of
    the last: most documents were missing from the index, and from batches that lie in several files."""
    ids = np.random.default_rng(0).integers(0, 300, 3_000_000).astype("u2")
    for number, some in enumerate(np.array_split(ids, files)):
        some.tofile(tmp_path / f"{number}.bin")
    with lowtide.open_tokens(tmp_path, dtype="uint16", eot=7, strategy=strategy, budget="4MiB") as tokens:
        found = np.concatenate(list(tokens.documents() or ()))
        np.testing.assert_array_equal(found[:-1] if ids[-1] != 7 else found, np.flatnonzero(ids == 7) + 1)
        windows = tokens.windows(64, documents=True)
        x, _, docs = windows.batches(512, seed=1)[0]
        np.testing.assert_array_equal(docs.loss_mask, x != 7)
        np.testing.assert_array_equal(docs.positions[:, 1:] == 0, x[:, :-1] == 7)
        assert tokens.windows(64, cut="packed").account().windows == 46_877
