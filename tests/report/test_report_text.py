"""What a report says and draws, without a browser: terminal text, thinning, ticks and the png."""

from __future__ import annotations

import dataclasses
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from tests.report.made import HOSTILE, cgroup, hostile_trace, long_trace, made, mapped_trace, plain, sample

from lowtide.errors import LowtideError
from lowtide.memory import KINDS, Verdict, judge
from lowtide.memory.watch import watch
from lowtide.report import html, png
from lowtide.report.content import file_table, process_table, sections, trace_facts, visible
from lowtide.report.series import STACK, series, size_ticks, thin, time_ticks
from lowtide.units import GIB, KIB, MIB


def test_the_verdict_comes_first_then_whose_it_is_and_what_helps_then_what_is_held() -> None:
    trace = mapped_trace(budget=None)
    lines = plain(trace, judge(trace), width=400).splitlines()
    titles = [line.split("  ")[0] for line in lines if line and not line.startswith(" ")]
    assert titles[:4] == ["VERDICT", "grown by", "fix", "HELD"]
    assert lines[0].startswith("VERDICT   mapped +") and lines[0].endswith("confidence: high")
    held = next(line for line in lines if line.startswith("HELD"))
    assert held.startswith("HELD      Held 931 MiB at its highest and 931 MiB now. Largest: mapped 809 MiB")


@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_nothing_is_cut_at_any_width(width: int) -> None:
    trace = dataclasses.replace(mapped_trace(), missing={"dirty": "no permission"})
    report = plain(trace, judge(trace), width=width)
    assert all(len(line) <= width for line in report.splitlines())
    assert "…" not in report and "..." not in report
    for words in ("no: heap, the program's own", "yes: file pages, in RSS", "not measured here"):
        assert words in report


def test_at_80_columns_the_fix_stands_within_the_first_six_lines() -> None:
    trace = mapped_trace(budget=None)
    lines = plain(trace, judge(trace), width=80).splitlines()
    assert any(line.startswith("fix ") for line in lines[:6])


def test_growth_since_the_start_beside_growth_after_start_up_is_explained() -> None:
    climbing = tuple(sample(float(k), anon=20 + (400 if k else 0) + 5 * k) for k in range(60))
    trace = made(climbing)
    lines = dict(sections(trace, judge(trace)))["grown by"]
    assert lines[0].startswith("process 4242 (python): +695 MiB, now 715 MiB")
    assert lines[1] == "(+695 MiB since it was started, +195 MiB of anon after start-up)"
    steady = made(tuple(sample(float(k), anon=20 + 5 * k) for k in range(60)))
    assert len(dict(sections(dataclasses.replace(steady, about="process"), judge(steady)))["grown by"]) == 1


def test_every_place_of_a_report_names_one_limit() -> None:
    samples = tuple(dataclasses.replace(sample(float(k), anon=50), cgroup=cgroup(300 * MIB)) for k in range(9))
    trace = made(samples)  # whose machine facts, taken before it was moved into its cgroup, say 24 GiB
    verdict = judge(trace)
    facts = dict(trace_facts(trace, verdict))
    assert (facts["limit"], facts["limit set by"]) == ("300 MiB", "cgroup v2 /job")
    drawn = series(trace, verdict)
    assert drawn is not None
    assert [(line.name, line.size) for line in drawn.lines] == [("cgroup limit", 300 * MIB)]
    assert "The limit is 300 MiB (cgroup v2 /job)" in plain(trace, verdict, width=400)


def test_the_table_has_now_growth_rate_and_meaning_of_every_kind() -> None:
    trace = mapped_trace()
    lines = plain(trace, judge(trace), width=200).splitlines()
    rows = {words[0]: line for line in lines if (words := line.split()) and not line.startswith(" ")}
    assert " ".join(rows["kind"].split()) == "kind now at most growth per min can it be taken back?"
    assert set(KINDS) <= set(rows)
    assert "809 MiB" in rows["mapped"] and "yes: file pages, in RSS" in rows["mapped"]
    assert rows["anon"].split()[1:6] == ["80.0", "MiB", "80.0", "MiB", "0"]


def test_a_kind_freed_before_the_end_shows_its_peak_beside_what_is_left() -> None:
    samples = (*mapped_trace(40).samples, sample(61.0, anon=10, mapped=3))
    trace = dataclasses.replace(made(samples), exit_code=0)
    lines = plain(trace, judge(trace), width=200).splitlines()
    assert any(line.startswith("kind") and "at the end" in line for line in lines)
    mapped = next(line for line in lines if line.startswith("mapped"))
    assert mapped.split()[1:5] == ["796", "MiB", "796", "MiB"]  # the fall of its last second is its teardown
    freed = dataclasses.replace(
        made((*samples, *(sample(62.0 + k, anon=10, mapped=3) for k in range(30)))), exit_code=0
    )
    mapped = next(line for line in plain(freed, judge(freed), width=200).splitlines() if line.startswith("mapped"))
    assert mapped.split()[1:5] == ["3.00", "MiB", "796", "MiB"]  # the control: it was freed long before


def test_sections_come_in_the_order_a_reader_asks_and_empty_ones_are_left_out() -> None:
    samples = tuple(dataclasses.replace(each, cgroup=cgroup(2 * GIB)) for each in mapped_trace(40, budget=None).samples)
    trace = dataclasses.replace(made(samples, budget=GIB), missing={"sharing": "no permission"})
    titles = [title for title, _ in sections(trace, judge(trace))]
    first, then = ["grown by", "fix", "budget", "risk"], ["not it", "evidence", "not measured"]
    assert titles == [*first, "held by", "shown as", "cgroup", *then]
    bare = Verdict("nothing", "low", "Nothing was measured.")
    assert sections(made(()), bare) == ()


def test_what_was_not_measured_is_said_once_and_never_shown_as_zero() -> None:
    trace = dataclasses.replace(mapped_trace(), missing={"cache": "cachestat needs Linux 6.5"})
    report = plain(trace, judge(trace), width=200)
    assert report.count("cachestat needs Linux 6.5") == 1
    row = next(line for line in report.splitlines() if line.startswith("cache"))
    assert row.split()[1:4] == ["?", "?", "?"]


def test_the_cgroup_section_tells_what_kubelet_counts() -> None:
    samples = tuple(dataclasses.replace(sample(float(k), anon=50), cgroup=cgroup(GIB)) for k in range(3))
    trace = made(samples)
    lines = dict(sections(trace, judge(trace)))["cgroup"]
    assert "current 900 MiB of 1.00 GiB · working set 400 MiB" in lines[0]
    assert "active file 300 MiB" in lines[0]
    assert "0 OOM kills" in lines[1]


def test_a_broken_budget_is_said_with_both_numbers() -> None:
    trace = mapped_trace(budget=256 * MIB)
    (line,) = dict(sections(trace, judge(trace)))["budget"]
    assert line == "broken: held at most 891 MiB of 256 MiB (anon + mapped + shmem + tables), after 1 min"


def test_hostile_names_reach_the_terminal_as_letters_only() -> None:
    trace = hostile_trace()
    report = plain(trace, judge(trace))
    assert not {"\x1b", "\x07", "\u202e", "\u2028"} & set(report)
    assert "[bold red]markup[/]" in report  # shown, not obeyed
    report.encode()  # no lone surrogate is left


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("plain/päth 文.bin", "plain/päth 文.bin"),
        ("a\nb\tc", "a\\nb\\tc"),
        ("\x1b[2J", "\\x1b[2J"),
        ("\u202egpj", "\\u202egpj"),
        ("\udce9", "\\udce9"),
    ],
)
def test_visible_keeps_letters_and_spells_out_what_would_act(raw: str, shown: str) -> None:
    assert visible(raw) == shown


def test_a_very_long_command_line_is_cut_and_says_so() -> None:
    assert visible("x" * 5000).endswith("... (4,400 more characters)")


def test_thinning_keeps_first_last_and_every_kinds_peak() -> None:
    trace = long_trace(20_000)
    kept = thin(trace.samples, 800)
    assert len(kept) <= 800
    assert kept[0] is trace.samples[0] and kept[-1] is trace.samples[-1]
    for kind in STACK:
        assert max(each.of(kind) for each in kept) == max(each.of(kind) for each in trace.samples)
    assert [each.seconds for each in kept] == sorted(each.seconds for each in kept)
    every_kth = trace.samples[:: len(trace.samples) // 800]  # the control: plain thinning loses the peak
    assert max(each.anon for each in every_kth) < max(each.anon for each in trace.samples)


def test_short_traces_are_not_thinned() -> None:
    samples = mapped_trace(300).samples
    assert thin(samples, 800) == samples


def test_the_stack_is_held_memory_below_and_the_rest_above() -> None:
    trace = mapped_trace()
    drawn = series(trace)
    assert drawn is not None
    assert drawn.tops("mapped") == tuple(each.held for each in trace.samples)
    assert drawn.tops("cache")[-1] == drawn.total(len(drawn.seconds) - 1)


@pytest.mark.parametrize("top", [1, 5, 900, 3 * KIB, 100 * MIB, 905 * MIB, 3 * GIB, 700 * GIB, 2**53])
def test_there_are_three_to_seven_size_ticks_for_every_height(top: int) -> None:
    ticks = size_ticks(top)
    assert ticks[0] == (0, "0")
    assert 2 <= len(ticks) <= 7
    assert ticks[-1][0] <= top


@pytest.mark.parametrize("last", [0.25, 3.3, 59, 61, 3599, 40_000, 86_401, 9e6])
def test_time_ticks_are_few_and_inside(last: float) -> None:
    ticks = time_ticks(last)
    assert 2 <= len(ticks) <= 9
    assert ticks[-1][0] <= last + 1e-6
    assert len({name for _, name in ticks}) == len(ticks)


def test_tables_name_the_largest_and_count_the_rest() -> None:
    parts = [dataclasses.replace(sample(0.0, anon=pid).processes[0], pid=pid) for pid in range(1, 101)]
    files = [dataclasses.replace(sample(0.0, cache=k).files[0], path=f"/data/{k}") for k in range(1, 41)]
    trace = made((dataclasses.replace(sample(0.0), processes=tuple(parts), files=tuple(files)),))
    processes, held = process_table(trace), file_table(trace)
    assert processes.rows[0][0] == "100" and held.rows[0][0] == "/data/40"
    assert processes.more == "and 70 more processes that held less"
    assert held.more == "and 10 more files that held less"


def test_a_real_watched_process_goes_through_every_writer(tmp_path: Path) -> None:
    with watch(interval=0.01) as watched:
        kept = [bytearray(MIB) for _ in range(64)]
    assert len(kept) == 64
    trace, verdict = watched.trace, watched.verdict
    html.write(trace, verdict, tmp_path / "page.html")
    png.write(trace, verdict, tmp_path / "png.png")
    assert "</html>" in (tmp_path / "page.html").read_text(encoding="utf-8")
    assert (tmp_path / "png.png").read_bytes().startswith(b"\x89PNG")
    assert "VERDICT" in plain(trace, verdict)


def test_the_page_replaces_the_old_one_whole_or_not_at_all(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text("old")
    broken = dataclasses.replace(mapped_trace(), samples=(None,))  # type: ignore[arg-type]  # fails while the page is made
    with pytest.raises(AttributeError):
        html.write(broken, judge(mapped_trace()), page)
    assert page.read_text() == "old"
    assert list(tmp_path.iterdir()) == [page]


@pytest.mark.slow
def test_names_with_dollars_and_missing_letters_are_drawn_without_a_warning(tmp_path: Path) -> None:
    for name in (*HOSTILE, "$\\frac{1$", "$_$", "文字\U0001f600"):
        trace = mapped_trace(20, command=name)
        png.write(trace, dataclasses.replace(judge(trace), headline=name), tmp_path / "png.png")
    assert (tmp_path / "png.png").stat().st_size > 10_000


@pytest.mark.parametrize("count", [1, 2])
def test_a_picture_can_be_drawn_from_very_few_samples(tmp_path: Path, count: int) -> None:
    trace = mapped_trace(count)
    png.write(trace, judge(trace), tmp_path / "png.png")
    assert (tmp_path / "png.png").exists()


def test_area_names_find_their_place_whatever_the_last_second_rounds_to() -> None:
    for place in range(2_000):
        seconds = (0.0, 0.7 + place / 977)
        bands = list(png._bands(seconds, (0, 0), (10, 10)))
        assert {gap for gap, _, _ in bands} == {10}
        assert all(0 < middle < seconds[1] for _, middle, _ in bands)


def test_a_picture_of_nothing_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(LowtideError, match="expected a trace with samples, got none"):
        png.write(made(()), judge(made(())), tmp_path / "png.png")
    assert list(tmp_path.iterdir()) == []


def test_without_matplotlib_the_picture_says_what_to_install(tmp_path: Path) -> None:
    program = """
import sys
sys.modules["matplotlib"] = None
from lowtide.memory import Sample, Trace, judge
from lowtide.report import html, png, terminal
trace = Trace("x", 0.0, 1.0, {}, (Sample(0.0, 1, 1, 1, 1, 1, 1),))
html.write(trace, judge(trace), sys.argv[1] + "/page.html")
terminal.render(trace, judge(trace))
try:
    png.write(trace, judge(trace), sys.argv[1] + "/png.png")
except Exception as problem:
    print(type(problem).__name__, problem)
"""
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout == (
        "LowtideError picture: expected matplotlib to be installed, got none. "
        "Install it with: pip install 'lowtide[report]'.\n"
    )
    assert (tmp_path / "page.html").exists() and not (tmp_path / "png.png").exists()


def test_panels_of_curves_areas_and_levels_become_one_picture(tmp_path: Path) -> None:
    path = tmp_path / "panels.png"
    x = (0.0, 1.0, 2.0)
    loss = png.Panel(
        "Loss",
        y_label="nats per token",
        curves=(
            png.Curve("train", x, (4.0, 3.0, 2.0), "#1f5fa8"),
            png.Curve("val", x[1:], (3.1, 2.2), "#d9722b", True),
        ),
        levels=(png.Level("knowing only $counts", 5.0),),
        bottom=0,
        with_next=True,
    )
    areas = (png.Curve("anon", x, (1.0, 1.0, 1.0), "#1f5fa8"), png.Curve("cache", x, (0.0, 2.0, 4.0), "#d9722b"))
    memory = png.Panel("Memory", "minutes", "MiB", areas=areas, levels=(png.Level("budget", 3.0, dotted=True),), top=9)
    png.write_panels(path, [loss, memory])
    width, height = struct.unpack(">II", path.read_bytes()[16:24])
    assert (width, height) == (1080, 780)
    png.write_panels(path, [loss])
    assert struct.unpack(">II", path.read_bytes()[16:24]) == (1080, 390)
