"""The ledger's arithmetic and its chain of steps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lowtide.errors import StateError
from lowtide.train import ledger


def test_ranks_sums_add_up_to_the_whole_batches_sum() -> None:
    rows = np.random.default_rng(0).integers(0, 50_000, (12, 33))
    whole = ledger.checksum(rows, 1000)
    for world in (2, 3, 4, 12):
        share = 12 // world
        parts = [ledger.checksum(rows[r * share : (r + 1) * share], 1000 + r * share) for r in range(world)]
        assert ledger.add(parts) == whole


def test_another_order_token_or_place_gives_another_sum() -> None:
    rows = np.random.default_rng(0).integers(0, 50_000, (4, 9))
    changed = rows.copy()
    changed[2, 3] += 1
    sums = [ledger.checksum(r, p) for r, p in ((rows, 0), (rows[::-1], 0), (changed, 0), (rows, 1))]
    assert len(set(sums)) == 4
    assert ledger.checksum(np.asfortranarray(rows), 0) == sums[0]


def test_the_chain_forgets_what_a_resume_overtook(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    with ledger.Ledger(path) as lines:
        for step in range(5):
            lines.stepped(step, step, step, 100 + step)
    with ledger.Ledger(path) as lines:
        lines.resumed(2)
        lines.stepped(2, 2, 2, 202)
    assert [(entry["step"], entry["sum"]) for entry in ledger.chain(path)] == [(0, 100), (1, 101), (2, 202)]


def test_a_missing_step_is_found(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    with ledger.Ledger(path) as lines:
        lines.stepped(0, 0, 0, 1)
        lines.stepped(2, 2, 2, 1)
    with pytest.raises(StateError, match="expected a line for step 1, got step 2"):
        ledger.chain(path)


def test_a_rank_that_does_not_write_makes_no_file(tmp_path: Path) -> None:
    with ledger.Ledger(tmp_path / "ledger", write=False) as lines:
        lines.stepped(0, 0, 0, 1)
    assert list(tmp_path.iterdir()) == []
