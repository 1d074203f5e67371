"""The parts of ``make peers`` that decide what its page says: the ledger, the words and the bold figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.peers.checks import told
from benchmarks.peers.ledger import (
    BATCH,
    LENGTH,
    account,
    resumed_elsewhere,
    rows_of,
    starts_of,
    tokens_at,
    write_tokens,
)
from benchmarks.peers.page import SPEED, Column, best, page, table

EPOCH = 5 * BATCH


def windows_at(starts: list[int]) -> Any:
    return np.stack([tokens_at(start, LENGTH) for start in starts]).astype(np.int64)


def test_tokens_tell_where_they_stand_at_any_phase() -> None:
    starts = [0, 1, 2, 65_535, 65_536, 65_537, 1_000_003, (1 << 29) - LENGTH]
    assert starts_of(windows_at(starts)).tolist() == starts


def test_a_row_with_one_wrong_token_is_no_piece_of_the_stream() -> None:
    x = windows_at([4096, 8192])
    x[1, 700] += 1
    assert starts_of(x).tolist() == [4096, -1]
    assert starts_of(np.zeros((1, LENGTH), np.int64)).tolist() == [-1]


def test_the_token_file_holds_its_windows_and_the_token_after(tmp_path: Path) -> None:
    write_tokens(tmp_path / "tokens.bin", 3)
    rows = rows_of(tmp_path / "tokens.bin")
    assert rows.shape == (3, LENGTH + 1)
    assert starts_of(rows[:, :LENGTH].astype(np.int64)).tolist() == [0, LENGTH, 2 * LENGTH]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda starts: starts, "yes"),
        (lambda starts: starts[: EPOCH - BATCH + 1], "yes"),  # the end makes no whole batch
        (lambda starts: starts[: EPOCH - BATCH], "no: 64 missing"),
        (lambda starts: np.concatenate([starts[:-70], starts[:70]]), "no: 70 twice, 70 missing"),
        (lambda starts: np.where(np.arange(EPOCH) < 2, -1, starts), "no: 2 wrong"),
        (lambda starts: np.concatenate([starts, starts[:9]]), "yes"),  # the next epoch has begun
    ],
)
def test_an_epoch_is_accounted_for(change: Any, said: str) -> None:
    starts = np.random.default_rng(0).permutation(EPOCH).astype(np.int64) * LENGTH
    assert str(account(change(starts), EPOCH, BATCH)) == said


def test_two_ranks_that_go_on_are_compared_step_by_step() -> None:
    rest = np.arange(4 * BATCH, dtype=np.int64)
    steps = rest.reshape(4, 2, BATCH // 2)
    ranks = [steps[:, 0].ravel(), steps[:, 1].ravel()]
    assert resumed_elsewhere(rest, ranks, BATCH) == "exact"
    assert resumed_elsewhere(rest, [rest[: 2 * BATCH], rest[2 * BATCH :]], BATCH) == "same rows, other batches"
    assert resumed_elsewhere(rest, [ranks[0], ranks[0]], BATCH) == "no: 128 lost, 128 repeated"


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ({"said": "lowtide.ReadError", "wrong": 0, "rows": 600}, "lowtide.ReadError"),
        ({"said": "ValueError", "wrong": 3, "rows": 600}, "3 wrong windows, then ValueError"),
        ({"said": "", "wrong": 3, "rows": 1000}, "3 wrong windows, no error"),
        ({"said": "", "wrong": 0, "rows": 1000}, "not noticed"),
        ({"said": "", "wrong": 0, "rows": 600}, "ends early (600 of 1,000 rows), no error"),
    ],
)
def test_what_a_cut_file_did_in_words(answer: dict[str, Any], words: str) -> None:
    assert told(answer, 1000) == words


def rows_for(**speeds: float) -> dict[str, dict[str, Any]]:
    return {name: {"title": name, "speed": speed} for name, speed in speeds.items()}


FASTEST = Column("speed", lambda row: f"{row['speed']:.0f}", lambda row: row["speed"], highest=True)


def test_the_best_is_bold_whoever_it_is_and_the_limit_takes_no_part() -> None:
    rows = rows_for(Lowtide=3.0, Other=7.2, Same=7.4, BareC=9.0)
    assert best(rows, FASTEST) == {"Other", "Same"}  # they read the same
    assert "| Other | **7** |" in table(rows, [FASTEST])
    assert "| BareC | 9 |" in table(rows, [FASTEST])


def test_a_peer_that_cannot_be_installed_is_named_with_the_reason() -> None:
    run = {"windows": 1.0, "read": 1.0, "cores": 1.0, "first": 1.0, "anon": 1, "mapped": 1, "resident": 1, "cached": 1}
    run |= {"useful": 1, "index": 0}
    about = {"shuffles": "globally", "resumes": "-", "code": "x", "notes": "", "version": "1"}
    here = {**about, "title": "Here", "missing": "", "warm": run, "cold": run, "once": "yes", "truncated": "SIGBUS"}
    document = {"date": "", "cpu": "", "kernel": "", "python": "", "numpy": "", "rounds": 1, "seconds": 1, "minutes": 1}
    document |= {"read_ahead": None, "limits": {"sequential": 1}}
    gone = {**about, "title": "Gone", "missing": "no wheel"}
    written = page({**document, "peers": {"Here": here, "Gone": gone}})
    assert "- **Gone**: no wheel" in written
    assert all(column.heading in written for column in SPEED)
    assert "Gone |" not in written
