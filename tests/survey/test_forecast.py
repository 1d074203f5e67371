"""A run forecast: the same figures for one rank as for the library's own objects, and a pace that always ends."""

from __future__ import annotations

import json
from dataclasses import FrozenInstanceError, asdict
from pathlib import Path

import numpy as np
import pytest

from lowtide.survey.forecast import RunAsked, forecast, steps_per_second
from lowtide.survey.subject import Opening, StatedData, find


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "table.npy"
    np.save(path, np.zeros((10, 4), np.float32))
    return path


def test_a_forecast_is_frozen_and_safe_for_json(table: Path) -> None:
    found = forecast(find([str(table)], StatedData()), Opening(), RunAsked(batch=3))
    assert json.loads(json.dumps(asdict(found)))["plan"]["strategy"] == found.plan.strategy
    with pytest.raises(FrozenInstanceError):
        found.batch = 4  # type: ignore[misc]


@pytest.mark.parametrize("world", range(1, 13))
def test_a_step_of_all_ranks_never_has_more_rows_than_there_are(world: int, table: Path) -> None:
    found = forecast(find([str(table)], StatedData()), Opening(), RunAsked(batch=4, world=world))
    share = -(-10 // world)
    assert found.batch_per_rank == min(4, share)
    assert found.batch == min(10, world * min(4, share))
    assert found.projection.steps_per_epoch >= 1


def test_an_array_in_fortran_order_is_forecast_with_a_read_per_column(tmp_path: Path) -> None:
    np.save(tmp_path / "columns.npy", np.asfortranarray(np.zeros((100_000, 5))))
    found = forecast(find([str(tmp_path / "columns.npy")], StatedData()), Opening(), RunAsked(batch=8))
    assert found.projection.requests_per_step == 8 * 5


@pytest.mark.parametrize("order", ["shuffled", "random", "sequential"])
@pytest.mark.parametrize("world", [1, 16])
def test_every_order_is_measured_also_where_most_ranks_have_no_row(order: str, world: int, table: Path) -> None:
    found = forecast(
        find([str(table)], StatedData()), Opening(), RunAsked(batch=3, order=order, world=world, measure=0.01)
    )
    assert found.rate_from == "measured"
    assert found.projection.seconds_per_epoch is not None
    assert found.projection.seconds_per_epoch > 0


@pytest.mark.parametrize("order", ["shuffled", "random", "sequential"])
def test_every_order_of_windows_is_measured(order: str, tmp_path: Path) -> None:
    np.save(tmp_path / "tokens.npy", np.arange(1000, dtype=np.uint16))
    subject = find([str(tmp_path / "tokens.npy")], StatedData())
    found = forecast(subject, Opening(), RunAsked(batch=4, length=16, order=order, measure=0.01))
    assert found.measured_steps_per_second is not None
    assert found.measured_steps_per_second > 0


def test_a_pace_goes_through_epoch_after_epoch_and_is_none_where_nothing_comes() -> None:
    seen = []

    def two_batches(epoch: int) -> list[int]:
        seen.append(epoch)
        return [0, 0]

    rate = steps_per_second(two_batches, seconds=0.01)
    assert rate is not None
    assert rate > 0
    assert seen == list(range(len(seen)))
    assert steps_per_second(lambda _: [], seconds=0.01) is None
