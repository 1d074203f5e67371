"""Resuming: the rows of an uninterrupted run, whatever changed in between but the data and the order."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.feeds import FORMATS, ORDERS, numbered, rows_of, same, starts_of
from tests.formats.conftest import TokenFiles

import lowtide
from lowtide.order import Permutation, key

COUNT, LENGTH, SEED = 4000, 21, 11
IDS = numbered(COUNT)
EPOCH = (COUNT - LENGTH) // LENGTH  # 189


def saved(state: dict[str, Any]) -> dict[str, Any]:
    """As a checkpoint would keep it."""
    again: dict[str, Any] = json.loads(json.dumps(state, allow_nan=False))
    assert again == state
    return again


def global_rows(feeds: list[lowtide.Feed], steps: int) -> list[tuple[int, ...]]:
    """What all ranks together receive, row by row: x and the last of y."""
    found = []
    for _ in range(steps):
        for feed in feeds:
            x, y = next(feed)
            found += [(*row, last) for row, last in zip(x.tolist(), y[:, -1].tolist(), strict=True)]
    return found


def world_of(tokens: lowtide.Tokens, world: int, batch: int, state: Any = None, **more: Any) -> list[lowtide.Feed]:
    feeds = [tokens.batches(batch, length=LENGTH, seed=SEED, rank=rank, world=world, **more) for rank in range(world)]
    for feed in feeds if state is not None else []:
        feed.load_state_dict(state)
    return feeds


@pytest.mark.parametrize("order", ["shuffled", "random"])
def test_eight_then_three_then_one_rank_receive_the_rows_of_an_uninterrupted_run(path: Path, order: str) -> None:
    """Each stage opens the corpus anew, as a new job would; the second and third begin in epochs 1 and 2."""
    with lowtide.open_tokens(path, dtype="uint16") as tokens:
        whole = global_rows(world_of(tokens, 1, 24, order=order), 30)
    received: list[tuple[int, ...]] = []
    state = None
    for world, steps in ((8, 9), (3, 10), (1, 11)):
        with lowtide.open_tokens(path, dtype="uint16") as tokens:
            feeds = world_of(tokens, world, 24, state, order=order)
            received += global_rows(feeds, steps)
            states = [saved(feed.state_dict()) for feed in feeds]
            assert all(each == states[0] for each in states)  # any rank's state serves every rank
            state = states[-1]
    assert state is not None
    assert state["rows"] == 30 * 24 > 3 * EPOCH
    assert received == whole


def test_another_batch_size_goes_on_with_the_next_row(tokens: lowtide.Tokens) -> None:
    whole = global_rows(world_of(tokens, 1, 1), 480)
    received: list[tuple[int, ...]] = []
    state = None
    for world, batch, steps in ((2, 24, 5), (1, 7, 11), (5, 35, 3), (1, 1, 8), (4, 4, 5), (2, 150, 1)):
        feeds = world_of(tokens, world, batch, state)
        received += global_rows(feeds, steps)
        state = saved(feeds[0].state_dict())
    assert received == whole


@pytest.mark.parametrize("order", ORDERS)
def test_every_point_of_a_run_can_be_resumed_from_and_resumed_again(tokens: lowtide.Tokens, order: str) -> None:
    whole = [(x.copy(), y.copy()) for _, (x, y) in zip(range(25), _feed(tokens, order), strict=False)]
    state = _feed(tokens, order).state_dict()
    for step, batch in enumerate(whole):  # a new feed for every single step: as many resumes in a row
        feed = _feed(tokens, order)
        feed.load_state_dict(saved(state))
        assert feed.step == step
        same(next(feed), batch)
        state = feed.state_dict()


def _feed(tokens: lowtide.Tokens, order: str = "shuffled", **more: Any) -> lowtide.Feed:
    return tokens.batches(16, length=LENGTH, seed=SEED, order=order, **more)


def test_a_state_says_where_the_caller_is_and_not_what_was_prefetched(tokens: lowtide.Tokens) -> None:
    feed = _feed(tokens)
    assert feed.state_dict()["rows"] == 0
    for step in range(1, 6):
        next(feed)
        assert feed.state_dict()["rows"] == 16 * step
    feed[100]
    feed.where(200)
    assert feed.state_dict()["rows"] == 80


def test_loading_a_state_back_in_the_same_feed_rewinds_it(tokens: lowtide.Tokens) -> None:
    feed = _feed(tokens)
    state = feed.state_dict()
    first = [(x.copy(), y.copy()) for _, (x, y) in zip(range(20), feed, strict=False)]
    feed.load_state_dict(state)
    for batch in first:
        same(next(feed), batch)


@pytest.mark.parametrize("order", ["shuffled", "random"])
def test_step_a_billion_is_had_like_step_zero(tokens: lowtide.Tokens, order: str) -> None:
    step = 10**9
    rows = range(16 * step, 16 * step + 16)
    expected = rows_of(IDS, starts_of(rows, COUNT, LENGTH, order, SEED), LENGTH)
    feed = _feed(tokens, order)
    same(feed[step], expected)
    feed.seek(step)
    assert feed.step == step
    same(next(feed), expected)
    state = saved({**feed.state_dict(), "rows": 16 * step})
    feed.seek(0)
    feed.load_state_dict(state)
    same(next(feed), expected)


def test_any_step_is_had_without_moving_and_seek_moves(tokens: lowtide.Tokens) -> None:
    feed = _feed(tokens)
    whole = [(x.copy(), y.copy()) for _, (x, y) in zip(range(30), _feed(tokens), strict=False)]
    for step in (29, 0, 7, 7, 28, 1):
        same(feed[step], whole[step])
        same(feed[np.int64(step)], whole[step])  # type: ignore[index]
    assert feed.cursor == 0
    for step in (29, 3, 0, 12):
        feed.seek(step)
        same(next(feed), whole[step])
        same(feed[5], whole[5])
        assert feed.step == step + 1
    for batch, step in zip(feed.__getitems__([4, 2, 9]), (4, 2, 9), strict=True):
        same(batch, whole[step])


@pytest.mark.parametrize("step", [-1, 2**62, 10**30])
def test_a_step_that_nobody_reaches_is_refused(tokens: lowtide.Tokens, step: int) -> None:
    feed = _feed(tokens)
    for ask in (feed.__getitem__, feed.seek, feed.where):
        with pytest.raises(IndexError, match=f"expected a step from 0 to [0-9]+, got {step}"):
            ask(step)
    assert feed.cursor == 0


@pytest.mark.parametrize("rows", [-1, 2**62 + 1, 2**63, 0.5, "1", None])
def test_a_cursor_that_nobody_reaches_is_refused(tokens: lowtide.Tokens, rows: Any) -> None:
    feed = _feed(tokens)
    with pytest.raises((TypeError, ValueError), match=r"cursor: expected .*, got .*\. Use feed\.seek\(step\)\."):
        feed.cursor = rows
    assert feed.cursor == 0


@pytest.mark.parametrize("batch", [2**48, 2**62, 2**63, 2**70])
def test_a_batch_beyond_the_memory_there_is_is_refused_when_asked_for(tokens: lowtide.Tokens, batch: int) -> None:
    with pytest.raises(lowtide.BudgetError, match=r"expected a batch of at most .*, the memory .*\. Use a batch of "):
        tokens.batches(batch, length=8)


@pytest.mark.parametrize("step", [1.0, "1", None, True, slice(3)])
def test_a_step_that_is_no_whole_number_is_refused(tokens: lowtide.Tokens, step: Any) -> None:
    with pytest.raises(TypeError, match="step: expected a whole number"):
        _feed(tokens)[step]


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("order", ORDERS)
def test_where_names_the_file_and_byte_each_row_begins_at(tmp_path: Path, name: str, order: str) -> None:
    made = FORMATS[name](TokenFiles(tmp_path), IDS)
    with lowtide.open_tokens(made.source, **made.keywords) as whole:
        _, val = whole.split(val=0.6)
        for rank in range(2):
            feed = val.batches(16, length=LENGTH, seed=SEED, order=order, rank=rank, world=2)
            for step in (0, 3):
                x, _ = feed[step]
                places = feed.where(step)
                assert len(places) == len(x) == 8
                for row, (file, offset, *_) in zip(x, places, strict=True):
                    found = np.fromfile(file, whole.dtype, LENGTH, offset=offset)
                    assert len(found) >= 1  # a window may go on in the next file
                    assert np.array_equal(found, row[: len(found)])
                    if len(whole.layout.extents) == 1:
                        assert len(found) == LENGTH


# Skipping steps


@pytest.mark.parametrize("skip", [[(3, 5)], [(0, 0)], [(3, 5), (6, 6), (4, 9)], [(8, 9), (2, 2)], [[1, 2]]])
@pytest.mark.parametrize("order", ORDERS)
def test_skipped_steps_are_left_out_and_the_others_stay_what_they_are(
    tokens: lowtide.Tokens, skip: Any, order: str
) -> None:
    gone = {step for first, last in skip for step in range(first, last + 1)}
    plain, feed = _feed(tokens, order), _feed(tokens, order, skip=skip)
    for step in (step for step in range(12) if step not in gone):
        same(next(feed), plain[step])
        assert feed.step == step + 1
    same(feed[3], plain[3])  # asked for by number it is there


def test_skipping_survives_a_resume_and_may_begin_with_one(tokens: lowtide.Tokens) -> None:
    plain = _feed(tokens)
    plain.seek(4)
    state = saved(plain.state_dict())
    feed = _feed(tokens, skip=[(5, 7)])
    feed.load_state_dict(state)
    same(next(feed), plain[4])
    again = _feed(tokens, skip=[(5, 7)])
    again.load_state_dict(saved(feed.state_dict()))
    same(next(again), plain[8])


def test_the_end_of_a_sequential_feed_can_be_skipped_step_by_step(tokens: lowtide.Tokens) -> None:
    plain = _feed(tokens, "sequential")  # 190 windows in 12 steps, the last of 14, and one step of 9 tokens left over
    steps = len(plain)
    assert steps == 13
    for gone in ([11], [12], [11, 12], [10, 11]):
        feed = _feed(tokens, "sequential", skip=[(gone[0], gone[-1])])
        received = [x.tolist() for x, _ in feed]
        assert received == [plain[step][0].tolist() for step in range(steps) if step not in gone]


def test_after_a_change_of_batch_size_no_skipped_row_comes(tokens: lowtide.Tokens) -> None:
    other = tokens.batches(10, length=LENGTH, seed=SEED)
    other.seek(3)
    feed = _feed(tokens, skip=[(3, 4)])  # rows 48 to 79
    feed.load_state_dict(other.state_dict())  # at row 30: steps of 16 from there do not meet the steps to skip
    left_out = {tuple(row) for step in (3, 4) for row in _feed(tokens)[step][0].tolist()}
    received = [tuple(row) for _ in range(8) for row in next(feed)[0].tolist()]
    assert not left_out & set(received)
    assert feed.cursor == 80 + 7 * 16


# Worlds that no machine here has


def test_four_thousand_ranks_over_fifteen_trillion_tokens_take_every_window_once(tmp_path: Path) -> None:
    """Six sparse files. Each sampled row's window leads back, through the inverse, to that very row of the epoch."""
    files, tokens_each, length, world, batch = 6, 5 * 10**12 // 2, 4096, 4096, 16_384
    paths = []
    for number in range(files):
        paths.append(tmp_path / f"shard_{number}.bin")
        with paths[-1].open("wb") as file:
            file.truncate(2 * tokens_each)
    total = files * tokens_each
    assert total == 15 * 10**12
    windows = (total - length) // length
    order, phase = Permutation(windows, seed=SEED, purpose="windows"), key(SEED, 0, "phase") % length
    with lowtide.open_tokens(paths, dtype="uint16", cache="keep") as tokens:
        assert len(tokens) == total
        seen: set[int] = set()
        share = batch // world
        last_step = windows // batch
        for step in (0, 1, last_step // 2, last_step - 1, last_step):
            for rank in (0, 1, 2047, 4094, 4095):
                feed = tokens.batches(batch, length=length, seed=SEED, rank=rank, world=world)
                rows = range(step * batch + rank * share, step * batch + rank * share + share)
                starts = starts_of(rows, total, length, seed=SEED)
                assert [_token_at(place, paths, tokens_each) for place in feed.where(step)] == starts
                mine = {row: start for row, start in zip(rows, starts, strict=True) if row < windows}
                assert order.inverse([(start - phase) // length for start in mine.values()]).tolist() == list(mine)
                seen.update(mine.values())
                if rank in (0, 2047):
                    x, y = feed[step]
                    assert x.shape == y.shape == (share, length)
                    assert not x.any()
        own = {row for step in (0, 1, last_step // 2, last_step - 1, last_step) for row in _rows(step, batch, share)}
        assert len(seen) == len([row for row in own if row < windows])
        assert max(seen) + length < total


def _rows(step: int, batch: int, share: int) -> list[int]:
    return [step * batch + rank * share + k for rank in (0, 1, 2047, 4094, 4095) for k in range(share)]


def _token_at(place: Any, paths: list[Path], tokens_each: int) -> int:
    return paths.index(Path(place.file)) * tokens_each + int(place.offset) // 2


# A corpus that moved


def test_a_copy_of_the_corpus_under_another_path_is_the_same_corpus(path: Path, tmp_path: Path) -> None:
    with lowtide.open_tokens(path, dtype="uint16") as tokens:
        feed = _feed(tokens)
        for _ in range(3):
            next(feed)
        state, expected = saved(feed.state_dict()), feed[3]
        shutil.copy(path, tmp_path / "elsewhere.u16")
        with lowtide.open_tokens(tmp_path / "elsewhere.u16", dtype="uint16") as copied:
            again = _feed(copied)
            again.load_state_dict(state)
            same(next(again), expected)
