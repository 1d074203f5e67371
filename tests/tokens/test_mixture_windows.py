"""Mixtures of windows: rows that are packed or carry documents, from the part whose turn it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lowtide

LENGTH = 64


def corpus(path: Path, seed: int, count: int = 20_000) -> lowtide.Tokens:
    ids = np.random.default_rng(seed).integers(1, 100, count).astype(np.uint16)
    ids[np.random.default_rng(seed + 1).integers(0, count, count // 40)] = 0
    ids.tofile(path)
    return lowtide.open_tokens(path, dtype="uint16", eot=0)


@pytest.fixture
def parts(tmp_path: Path) -> dict[str, lowtide.Tokens]:
    return {"code": corpus(tmp_path / "code.bin", 1), "web": corpus(tmp_path / "web.bin", 7)}


def mixed(parts: dict[str, lowtide.Tokens], **how: Any) -> lowtide.Mixture:
    weights = {"code": 0.3, "web": 0.7}
    return lowtide.mix({name: (tokens.windows(LENGTH, **how), weights[name]) for name, tokens in parts.items()})


@pytest.mark.parametrize("cut", ["stride", "packed"])
@pytest.mark.parametrize("documents", [False, True])
def test_every_row_is_the_next_row_of_the_part_whose_turn_it_is(
    parts: dict[str, lowtide.Tokens], cut: str, documents: bool
) -> None:
    mixture = mixed(parts, cut=cut, documents=documents)
    feed = mixture.batches(8, seed=5)
    alone = {
        name: tokens.windows(LENGTH, cut=cut, documents=documents).batches(1, seed=5) for name, tokens in parts.items()
    }
    given = dict.fromkeys(parts, 0)
    for step in range(12):
        batch = feed[step]
        for row, place in enumerate(feed.where(step)):
            assert place.corpus is not None
            expected = alone[place.corpus][given[place.corpus]]
            given[place.corpus] += 1
            assert np.array_equal(batch[0][row], expected[0][0])
            assert np.array_equal(batch[1][row], expected[1][0])
            if documents:
                assert np.array_equal(batch[2].positions[row], expected[2].positions[0])
                assert np.array_equal(batch[2].loss_mask[row], expected[2].loss_mask[0])
                assert np.array_equal(batch[2].ids[row] == -1, expected[2].ids[0] == -1)
    assert abs(given["web"] - 0.7 * 96) <= 1
    lengths = {name: len(tokens.windows(LENGTH, cut=cut)) for name, tokens in parts.items()}
    assert mixture.epochs(96) == {name: given[name] / lengths[name] for name in parts}


@pytest.mark.parametrize("cut", ["stride", "packed"])
def test_runs_are_numbered_through_the_batch_and_their_ends_have_one_length(
    parts: dict[str, lowtide.Tokens], cut: str
) -> None:
    feed = mixed(parts, cut=cut, documents=True).batches(8, seed=5)
    lengths = set()
    for step in range(5):
        x, _, docs = feed[step]
        flat = docs.ids.reshape(-1)
        numbers = flat[flat >= 0]
        assert np.array_equal(np.unique(numbers), np.arange(numbers.max() + 1))
        assert (np.diff(numbers) >= 0).all(), "in the order of the rows"
        ends = docs.cu_seqlens
        lengths.add(len(ends))
        assert ends[0] == 0
        assert ends[-1] == x.size
        assert docs.max_seqlen == int(np.diff(ends).max())
        real = np.unique(ends)[:-1]
        assert set(range(0, x.size, LENGTH)) <= set(real.tolist()), "every row begins a run"
        assert (docs.positions.reshape(-1)[real] == 0).all()
    assert len(lengths) == 1


def test_a_state_goes_on_with_another_batch_and_world(parts: dict[str, lowtide.Tokens]) -> None:
    mixture = mixed(parts, cut="packed", documents=True)
    whole = mixture.batches(8, seed=5)
    first = next(whole)
    state = whole.state_dict()
    expected = next(whole)[0]
    halves = [mixture.batches(4, seed=5, rank=rank, world=2) for rank in range(2)]
    for half in halves:
        half.load_state_dict(state)
    found = np.concatenate([np.stack([next(half)[0] for half in halves]).reshape(4, LENGTH) for _ in range(2)])
    assert np.array_equal(found, expected)
    assert len(first) == 3
    other = mixed(parts, cut="stride", documents=True).batches(8, seed=5)
    with pytest.raises(lowtide.StateError, match="cut"):
        other.load_state_dict(state)


def test_what_does_not_go_together_is_refused_with_both(parts: dict[str, lowtide.Tokens]) -> None:
    code, web = parts["code"], parts["web"]
    with pytest.raises(ValueError, match="windows of equal length, got 64 for 'code' and 32 for 'web'"):
        lowtide.mix({"code": (code.windows(64), 1), "web": (web.windows(32), 1)})
    with pytest.raises(ValueError, match="windows of equal cut, got 'stride' for 'code' and 'packed' for 'web'"):
        lowtide.mix({"code": (code.windows(64), 1), "web": (web.windows(64, cut="packed"), 1)})
    with pytest.raises(TypeError, match="expected windows for 'web' as for 'code', got Tokens"):
        lowtide.mix({"code": (code.windows(64), 1), "web": (web, 1)})
    with pytest.raises(ValueError, match="length: expected none for a mixture of windows"):
        mixed(parts).batches(8, length=64)


def test_the_budget_is_for_all_parts_together(parts: dict[str, lowtide.Tokens]) -> None:
    windows = {name: (tokens.windows(LENGTH, cut="packed", documents=True), 1) for name, tokens in parts.items()}
    mixture = lowtide.mix(windows, budget="2MiB")
    feed = mixture.batches(16, seed=0)
    for _ in range(10):
        next(feed)
        assert mixture.budget.held <= mixture.budget.limit == 2 << 20
    with pytest.raises(lowtide.BudgetError, match="a mixture of code, web: batches of 4096 x 64 per rank"):
        mixture.batches(4096, seed=0)


@pytest.mark.parametrize("strategy", ["remap", "advise"])
@pytest.mark.parametrize("budget", [None, "8MiB"])
def test_any_number_of_mapped_corpora_share_a_budget(tmp_path: Path, strategy: str, budget: str | None) -> None:
    paths = [tmp_path / f"{number}.bin" for number in range(7)]
    for number, path in enumerate(paths):
        corpus(path, number)

    def first(strategy: str) -> Any:
        laid = {}
        for path in paths:
            tokens = lowtide.open_tokens(path, dtype="uint16", strategy=strategy)
            laid[path.stem] = tokens.windows(LENGTH), 1
        return next(lowtide.mix(laid, budget=budget).batches(14, seed=2))

    for ours, wanted in zip(first(strategy), first("read"), strict=True):
        np.testing.assert_array_equal(ours, wanted)
