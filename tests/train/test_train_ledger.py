"""The ledger's arithmetic and its chain of steps."""

from __future__ import annotations

import resource
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.train.running import SERVER

from lowtide.errors import LowtideError, StateError
from lowtide.train import ledger


def test_ranks_sums_add_up_to_the_whole_batches_sum() -> None:
    rows = np.random.default_rng(0).integers(0, 50_000, (12, 33))
    whole = ledger.checksum(rows, 1000)
    for world in (2, 3, 4, 12):
        share = 12 // world
        parts = [ledger.checksum(rows[r * share : (r + 1) * share], 1000 + r * share) for r in range(world)]
        assert ledger.add_sums(parts) == whole


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
        lines.began(2)
        lines.stepped(2, 2, 2, 202)
    assert [(entry["step"], entry["sum"]) for entry in ledger.chain(path)] == [(0, 100), (1, 101), (2, 202)]


def test_a_branch_that_was_killed_before_it_saved_leaves_the_one_it_came_from(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    runs = [(0, 1, 1, range(8), 100), (4, 1, 2, range(4, 6), 200), (7, 1, 1, range(7, 9), 300)]
    for first, of, branch, steps, sums in runs:
        with ledger.Ledger(path) as lines:
            lines.began(first, of, branch)
            for step in steps:
                lines.stepped(step, step, step + 1, sums + step)
    assert [entry["sum"] for entry in ledger.chain(path)] == [*range(100, 107), 307, 308]
    with ledger.Ledger(path) as lines:  # and one that saved is gone on with
        lines.began(6, 1, 3)
        lines.stepped(6, 6, 7, 406)
        lines.began(7, 3, 3)
        lines.stepped(7, 7, 8, 507)
    assert [entry["sum"] for entry in ledger.chain(path)] == [*range(100, 106), 406, 507]


def test_a_ledger_that_names_no_branches_is_read_as_one(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    lines = [
        '{"resume":0}',
        *(f'{{"step":{step},"first":0,"last":1,"sum":{step}}}' for step in range(4)),
        '{"resume":2}',
    ]
    path.write_text("".join(f"{line}\n" for line in [*lines, '{"step":2,"first":0,"last":1,"sum":9}']))
    assert [entry["sum"] for entry in ledger.chain(path)] == [0, 1, 9]


def test_a_run_killed_before_its_first_checkpoint_and_started_anew_leaves_a_whole_chain(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    for steps in (2, 3):
        with ledger.Ledger(path) as lines:
            lines.began(0)
            for step in range(steps):
                lines.stepped(step, step, step, 100 * steps + step)
    assert [entry["sum"] for entry in ledger.chain(path)] == [300, 301, 302]


@pytest.mark.parametrize("torn", ["{", '{"step":2,"first', '{"step":2,"first":2,"last":2,"sum":1}'])
def test_a_torn_last_line_is_not_read_and_the_next_run_writes_over_it(tmp_path: Path, torn: str) -> None:
    path = tmp_path / "ledger"
    with ledger.Ledger(path) as lines:
        for step in range(2):
            lines.stepped(step, step, step, step)
    with path.open("a") as file:
        file.write(torn)
    assert len(ledger.chain(path)) == 2
    with ledger.Ledger(path) as lines:
        lines.began(1)
        lines.stepped(1, 1, 1, 7)
    assert [entry["sum"] for entry in ledger.chain(path)] == [0, 7]


def test_a_line_that_is_no_step_is_named(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    path.write_text('{"step":0,"first":0,"last":0,"sum":1}\nhello\n')
    with pytest.raises(StateError, match="expected a step in line 2, got 'hello'"):
        ledger.chain(path)


def _write_with_little_room(path: Path, answers: Any) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))  # two lines and a part of the third
    try:
        with ledger.Ledger(path) as lines:
            for step in range(9):
                lines.stepped(step, step, step, step)
    except Exception as problem:
        answers.put((isinstance(problem, LowtideError), str(problem)))


@pytest.mark.slow
def test_a_full_disk_is_a_typed_error_and_leaves_only_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    answers = SERVER.SimpleQueue()
    child = SERVER.Process(target=_write_with_little_room, args=(path, answers))
    child.start()
    typed, message = answers.get()
    child.join()
    assert typed
    assert message.startswith(f"{path}: expected to add a line of 38 bytes to the ledger, got 'File too large'.")
    assert path.read_bytes().endswith(b"}\n")
    assert len(ledger.chain(path)) == 2


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
