"""Tables of an index are read, never mapped: from memory where they fit the budget, else part by part."""

from __future__ import annotations

import os
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lowtide
from lowtide.cli import main
from lowtide.reading.documents import kept_arrays


@pytest.fixture
def by_offsets(tmp_path: Path) -> Path:
    """A corpus whose format knows its documents: none of its ids marks them, so the index is looked into."""
    rng = np.random.default_rng(3)
    ids = rng.integers(1, 500, 400_000).astype(np.uint16)
    ids[np.cumsum(rng.integers(2, 120, 6000))[:-1] % len(ids)] = 0
    ids.tofile(tmp_path / "ids.u16")
    what = [str(tmp_path / "ids.u16"), "--dtype", "uint16", "--eot", "0"]
    assert main(["convert", *what, "--to", "megatron", "-o", str(tmp_path / "corpus")]) == 0
    return tmp_path / "corpus"


@pytest.mark.parametrize("engine", ["native", "python"])
@pytest.mark.parametrize("cut", ["packed", "stride"])
def test_tables_that_do_not_fit_the_budget_are_read_and_give_the_same_batches(
    by_offsets: Path, cut: str, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if engine == "native":
        pytest.importorskip("lowtide.engine._core", reason="NOT TESTED: the native engine - it was not built")

    def batches() -> tuple[str, list[Any]]:
        with lowtide.open_tokens(by_offsets, engine=engine, budget="2MiB") as tokens:
            feed = tokens.windows(128, cut=cut, documents=True).batches(16, seed=3)
            found = [[np.array(x), np.array(y), *map(np.array, docs)] for x, y, docs in islice(feed, 40)]
            where = [str(feed.where(step)) for step in (0, 7)]
            return str(feed.plan()), [found, where]

    plan, held = batches()
    assert "tables" in plan and "are held in memory" in plan
    monkeypatch.setattr(kept_arrays, "LARGEST_SHARE", 1 << 20)
    plan, read = batches()
    assert "are read batch by batch" in plan
    for one, other in zip(held[0], read[0], strict=True):
        assert all(map(np.array_equal, one, other))
    assert held[1] == read[1]


def test_tables_in_memory_are_counted_and_given_up_where_batches_need_the_room(by_offsets: Path) -> None:
    with lowtide.open_tokens(by_offsets, budget="2MiB") as tokens:
        feed = tokens.windows(128, cut="packed").batches(16, seed=3)
        wanted = [np.array(next(feed)[0]) for _ in range(100)]
        feed.seek(0)
        next(feed)
        held: Any = feed._reader.held  # type: ignore[attr-defined]
        tables = held.nbytes
        assert tokens.store.budget.held >= tables
        kept = []
        for step in range(99):  # more and more of them, until the budget is full
            try:
                kept.append(next(feed))
            except lowtide.BudgetError:
                break
            assert tokens.store.budget.held <= 2 << 20
            assert np.array_equal(kept[-1][0], wanted[1 + step])
        assert held.get() is None, "given up"
        del kept
        assert len(next(feed)) == 2


@pytest.mark.parametrize("engine", ["native", "python"])
@pytest.mark.parametrize("cut", ["packed", "stride"])
def test_an_index_cut_at_any_moment_of_reading_it_is_a_read_error(
    by_offsets: Path, cut: str, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was mapped, and a cut in the middle of a copy ended the process by SIGBUS."""
    if engine == "native":
        pytest.importorskip("lowtide.engine._core", reason="NOT TESTED: the native engine - it was not built")
    monkeypatch.setattr(kept_arrays, "LARGEST_SHARE", 1 << 20)
    with lowtide.open_tokens(by_offsets, engine=engine) as tokens:
        feed = tokens.windows(128, cut=cut, documents=True).batches(16, seed=3)
        next(feed)
        maps = Path("/proc/self/maps").read_text()
        kept = list((by_offsets / ".lowtide").iterdir())
        assert kept and not any(one.name in maps for one in kept)
        real = kept_arrays.KeptArrays.read_runs

        def cut_just_before(self: Any, *arguments: Any) -> Any:
            os.truncate(self.path, 4096)
            return real(self, *arguments)

        monkeypatch.setattr(kept_arrays.KeptArrays, "read_runs", cut_just_before)
        with pytest.raises(lowtide.ReadError, match=r"expected the \d+ bytes that were opened, got 4096.*Delete it"):
            for _ in range(20):
                next(feed)
