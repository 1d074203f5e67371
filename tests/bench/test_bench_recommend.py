"""What figures recommend: pure, so every rule has its own made-up figures."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lowtide.bench.jobs import READING_WAYS
from lowtide.bench.presentation import pattern_rows
from lowtide.bench.recommend import Advice, recommend, times
from lowtide.bench.rounds import Case
from lowtide.cli.tables import table

MIB = 1 << 20
BUDGET = 64 * MIB


def figures(**rates: tuple[float | None, float | None]) -> list[Case]:
    """Cases of every way, 100 a second cold and warm; ``rates`` changes ways by name (blanks and commas left out)."""
    cases = []
    for way in READING_WAYS:
        for pattern in way.patterns:
            cold, warm = rates.get(way.name.replace(", ", "_").replace(" ", "_"), (100.0, 100.0))
            warm = warm if way.warm else None
            cases.append(Case(pattern, way.name, way.strategy, way.cache, 2048, cold, warm, rounds=3))
    return cases


def advise(cases: list[Case], *, keep: bool = True) -> Advice:
    return recommend(cases, keep=keep, cache_why="it fits", budget=BUDGET)


def test_equal_figures_leave_the_default() -> None:
    assert advise(figures()).strategy == "read"
    assert advise(figures()).cache == "keep"
    assert advise(figures(), keep=False).cache == "drop"


@pytest.mark.parametrize(("rate", "strategy"), [(110.0, "read"), (130.0, "remap")])
def test_another_strategy_is_taken_only_for_a_clear_gain(rate: float, strategy: str) -> None:
    found = advise(figures(remap_keep=(100.0, rate)))
    assert found.strategy == strategy
    assert any("1.3x 'read'" in reason for reason in found.reasons) == (strategy == "remap")


@pytest.mark.parametrize(("rate", "strategy"), [(290.0, "read"), (310.0, "remap")])
def test_one_round_needs_a_gain_that_noise_does_not_reach(rate: float, strategy: str) -> None:
    once = [replace(case, rounds=1) for case in figures(remap_keep=(100.0, rate))]
    assert advise(once).strategy == strategy


def test_warm_figures_decide_where_the_cache_holds_the_data_and_cold_ones_where_not() -> None:
    cases = figures(remap_keep=(1.0, 900.0), advise_drop=(900.0, None))
    assert advise(cases).strategy == "remap"
    assert advise(cases, keep=False).strategy == "advise"


def test_a_way_that_broke_the_budget_is_never_recommended() -> None:
    fast = figures(remap_keep=(900.0, 900.0))
    broken = [replace(case, mapped=200 * MIB) if case.way == "remap, keep" else case for case in fast]
    assert advise(fast).strategy == "remap"
    assert advise(broken).strategy == "read"


def test_map_is_mentioned_when_much_faster_and_never_recommended() -> None:
    found = advise(figures(map_keep=(100.0, 300.0)))
    assert found.strategy == "read"
    assert "3.0x faster warm" in found.beside[0]
    assert advise(figures(map_keep=(100.0, 300.0)), keep=False).beside == ()
    assert advise(figures(map_keep=(100.0, 110.0))).beside == ()


def test_without_figures_the_default_is_recommended_and_says_so() -> None:
    nothing = [replace(case, cold=None, warm=None, rounds=0) for case in figures()]
    found = advise(nothing, keep=False)
    assert (found.strategy, found.cache) == ("read", "drop")
    assert "no figures" in found.reasons[-1]


def test_warm_figures_alone_do_not_choose_between_ways_that_drop() -> None:
    warm_only = [replace(case, cold=None) for case in figures()]
    assert advise(warm_only, keep=False).strategy == "read"


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0012, "<0.01x"), (0.034, "0.03x"), (1.0, "1.00x"), (1.25, "1.2x"), (14.4, "14x"), (3606.4, "3,606x")],
)
def test_ratios_read_as_people_say_them(value: float, text: str) -> None:
    assert times(value) == text


@pytest.mark.parametrize("pattern", ["chunks", "rows", "windows"])
def test_tables_with_every_column_and_large_figures_fit_80_columns(
    pattern: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    cases = [
        replace(
            case, cold=1_234_567.0, warm=2_345_678.0, anon=65 * MIB, mapped=8192 * MIB, left=8192 * MIB, device=61.0
        )
        for case in figures()
    ]
    lines = table(*pattern_rows(cases, pattern))
    assert len(lines) >= 10
    assert max(len(line.text) for line in lines) <= 80
