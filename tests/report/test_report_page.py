"""The HTML page in a real Chromium: it shows, it answers, and nothing from outside acts in it."""

from __future__ import annotations

import dataclasses
import json
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.report.browser import Browser, find
from tests.report.made import HOSTILE, cgroup, hostile_trace, long_trace, made, mapped_trace, sample

from lowtide.memory import Trace, judge
from lowtide.report import html
from lowtide.units import GIB, KIB, MIB, TIB, format_size


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    program = find()
    if program is None:
        pytest.skip("NOT TESTED: the HTML page in a browser. No chromium on PATH; install the Debian package chromium.")
    with Browser(program) as running:
        yield running


def shown(browser: Browser, trace: Trace, path: Path, **look: Any) -> Browser:
    html.write(trace, judge(trace), path)
    browser.look(**look)
    browser.open(path)
    return browser


def place_on_plot(browser: Browser, share: float) -> tuple[float, float]:
    box = browser.evaluate(
        "(r => [r.left, r.top, r.width, r.height])(document.getElementById('plot').getBoundingClientRect())"
    )
    return box[0] + share * box[2], box[1] + box[3] / 2


def legend(browser: Browser) -> dict[str, str]:
    script = (
        "Object.fromEntries([...document.querySelectorAll('[data-read]')].map(c => [c.dataset.read, c.textContent]))"
    )
    return dict(browser.evaluate(script))


def test_the_page_loads_without_a_console_message_and_asks_the_network_for_nothing(
    browser: Browser, tmp_path: Path
) -> None:
    page = tmp_path / "report.html"
    shown(browser, mapped_trace(), page)
    assert browser.problems == []
    assert browser.requests == [page.as_uri()]


def test_every_kind_in_the_trace_is_an_area_that_can_be_seen(browser: Browser, tmp_path: Path) -> None:
    shown(browser, mapped_trace(), tmp_path / "report.html")
    script = """Object.fromEntries([...document.querySelectorAll('path.area')].map(p => {
        const box = p.getBoundingClientRect();
        return [p.dataset.kind, [box.width, box.height, getComputedStyle(p).fill]];
    }))"""
    areas = browser.evaluate(script)
    assert set(areas) == {"anon", "tables", "mapped", "cache"}  # no dirty and no shmem in this trace
    plot_width = browser.evaluate("document.getElementById('plot').clientWidth")
    assert all(width > 0.98 * plot_width and height > 10 for width, height, _ in areas.values())
    assert len({fill for _, _, fill in areas.values()}) == 4


def test_hovering_gives_the_numbers_of_every_kind_at_that_time(browser: Browser, tmp_path: Path) -> None:
    trace = mapped_trace(121)
    shown(browser, trace, tmp_path / "report.html")
    at_rest = legend(browser)
    browser.hover(*place_on_plot(browser, 0.5))
    middle = trace.samples[60]
    expected = {kind: format_size(middle.of(kind)) for kind in ("anon", "mapped", "cache", "dirty", "tables", "shmem")}
    sums = {"sum": middle.held + middle.cache, "held": middle.held, "rss": middle.rss}
    assert legend(browser) == expected | {name: format_size(size) for name, size in sums.items()}
    assert browser.evaluate("document.getElementById('at').textContent") == "at 30.0 s"
    assert browser.evaluate("document.getElementById('cursor').hidden") is False
    browser.hover(5, 5)
    assert legend(browser) == at_rest
    assert at_rest["mapped"] == format_size(trace.samples[-1].mapped)


def test_the_plot_is_read_with_the_keyboard_alone(browser: Browser, tmp_path: Path) -> None:
    trace = mapped_trace(121)
    shown(browser, trace, tmp_path / "report.html")
    browser.press("Tab")
    assert browser.evaluate("document.activeElement.id") == "plot"
    browser.press("Home")
    browser.press("ArrowRight")
    assert legend(browser)["mapped"] == format_size(trace.samples[1].mapped)
    spoken = browser.evaluate("document.activeElement.getAttribute('aria-valuetext')")
    assert spoken.startswith("0.5 s: anon 80.0 MiB")
    browser.press("End")
    assert browser.evaluate("document.activeElement.getAttribute('aria-valuenow')") == "120"
    browser.press("Escape")
    assert browser.evaluate("document.getElementById('cursor').hidden") is True


@pytest.mark.parametrize(
    "bytes_", [0, 1, 1023, KIB, 10 * KIB - 1, 100 * KIB, 999 * MIB, 1023.99 * MIB, 1.5 * GIB, 5000 * TIB]
)
def test_the_script_writes_sizes_as_the_library_does(browser: Browser, tmp_path: Path, bytes_: float) -> None:
    size = int(bytes_)
    last = dataclasses.replace(sample(1.0), anon=size)
    shown(browser, made((sample(0.0), last)), tmp_path / "report.html")
    browser.hover(*place_on_plot(browser, 0.999))
    assert legend(browser)["anon"] == format_size(size)


def test_hostile_names_are_shown_and_never_run(browser: Browser, tmp_path: Path) -> None:
    shown(browser, hostile_trace(), tmp_path / "report.html")
    browser.hover(*place_on_plot(browser, 0.4))
    assert browser.evaluate("typeof window.owned") == "undefined"
    assert browser.problems == []
    assert browser.evaluate("document.querySelectorAll('script').length") == 2
    assert browser.evaluate("document.querySelectorAll('img, [onload], [onerror]').length") == 0
    text = browser.evaluate("document.body.innerText")
    assert "</script><script>window.owned = 1</script>" in text
    assert "photo\\u202egpj.exe" in text
    assert not set(text) & {"\u202e", "\u2028", "\x1b"}


def test_without_the_escaping_the_same_names_would_run(browser: Browser, tmp_path: Path) -> None:
    """The negative control: the attack is real, so that the test above can fail."""
    page = tmp_path / "raw.html"
    page.write_text(f"<!doctype html><p>{HOSTILE[0]}</p>", encoding="utf-8")
    browser.open(page)
    assert browser.evaluate("window.owned") == 1


def test_the_content_policy_stops_a_script_that_escaping_missed(browser: Browser, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    trace = mapped_trace()
    text = html.page(trace, judge(trace)).replace("<main>", f"<main>{HOSTILE[0]}")
    page.write_text(text, encoding="utf-8")
    browser.open(page)
    assert browser.evaluate("typeof window.owned") == "undefined"
    assert any("Content Security Policy" in problem for problem in browser.problems)


def test_data_for_the_script_comes_back_whole_from_inside_the_page(browser: Browser, tmp_path: Path) -> None:
    trace = hostile_trace()
    shown(browser, trace, tmp_path / "report.html")
    command = browser.evaluate("JSON.stringify(JSON.parse(document.getElementById('data').textContent).command)")
    assert json.loads(command) == trace.command


@pytest.mark.parametrize("width", [320, 360, 768, 1200, 1920])
def test_no_width_needs_sideways_scrolling(browser: Browser, tmp_path: Path, width: int) -> None:
    for trace in (mapped_trace(command="python " + "x" * 500), hostile_trace()):
        shown(browser, trace, tmp_path / "report.html", width=width, height=800)
        assert browser.evaluate("document.documentElement.scrollWidth") <= width
        assert browser.evaluate("document.getElementById('plot').clientWidth") > 0.5 * min(width, 700)


@pytest.mark.parametrize("width", [320, 400, 768])
def test_no_number_of_a_phone_page_is_cut(browser: Browser, tmp_path: Path, width: int) -> None:
    shown(browser, mapped_trace(), tmp_path / "report.html", width=width, height=900)
    script = """[...document.querySelectorAll('.legend *, .growth td, .list td, .xlabels span, dd, header *')].filter(
        e => e.getBoundingClientRect().right > document.documentElement.clientWidth
             || (e.clientWidth && e.scrollWidth > e.clientWidth + 1)
    ).map(e => e.textContent)"""
    assert browser.evaluate(script) == []
    inside = """(p => [...document.querySelectorAll('#plot path')].every(e => {
        const box = e.getBoundingClientRect();
        return box.top >= p.top - 2 && box.right <= p.right + 2;
    }))(document.getElementById('plot').getBoundingClientRect())"""
    assert browser.evaluate(inside) is True


def test_the_legend_at_rest_and_the_table_give_the_same_end(browser: Browser, tmp_path: Path) -> None:
    samples = (*mapped_trace(40).samples, sample(61.0, anon=10, mapped=3))  # its last second is its teardown
    trace = dataclasses.replace(made(samples), exit_code=0)
    shown(browser, trace, tmp_path / "report.html")
    at_rest = legend(browser)
    assert at_rest["mapped"] == "796 MiB"
    script = "document.querySelector('.growth td[data-label=\"at the end\"]').textContent"
    assert at_rest["anon"] == browser.evaluate(script)
    browser.hover(*place_on_plot(browser, 0.2))
    assert legend(browser) != at_rest  # the control
    browser.hover(5, 5)
    assert legend(browser) == at_rest


def test_dark_and_light_readers_get_their_own_colours_with_enough_contrast(browser: Browser, tmp_path: Path) -> None:
    backgrounds = []
    for dark in (False, True):
        shown(browser, mapped_trace(), tmp_path / "report.html", dark=dark)
        script = (
            "(s => [s.color, getComputedStyle(document.querySelector('header')).backgroundColor])(getComputedStyle({}))"
        )
        for place in (
            "document.querySelector('h1')",
            "document.querySelector('.when')",
            "document.querySelector('.what b')",
        ):
            ink, card = browser.evaluate(script.format(place))
            assert contrast(ink, card) >= 4.5, (dark, place)  # WCAG AA for body text
        backgrounds.append(light_of(card))
    assert backgrounds[0] > 0.8 > 0.1 > backgrounds[1]


def test_a_dark_reader_prints_on_white(browser: Browser, tmp_path: Path) -> None:
    shown(browser, mapped_trace(), tmp_path / "report.html", dark=True, media="print")
    assert browser.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    ink = browser.evaluate("getComputedStyle(document.querySelector('h1')).color")
    assert contrast(ink, "rgb(255, 255, 255)") >= 4.5


@pytest.mark.slow
def test_the_screenshot_shows_the_areas_in_their_colours(browser: Browser, tmp_path: Path) -> None:
    shown(browser, mapped_trace(), tmp_path / "report.html", width=1000, height=800)
    x, y = place_on_plot(browser, 0.97)
    pixels = pixels_of(browser.screenshot(tmp_path / "page.png", whole=False))
    assert pixels(int(x), int(y) + 20) == (0x2F, 0x78, 0xB7)  # mapped, in the middle of a plot it fills
    assert pixels(int(place_on_plot(browser, 0.05)[0]), int(y) - 80) != (0x2F, 0x78, 0xB7)


def test_the_budget_and_a_near_limit_are_lines_at_their_heights(browser: Browser, tmp_path: Path) -> None:
    samples = tuple(dataclasses.replace(sample(float(k), anon=100 * k), cgroup=cgroup(1200 * MIB)) for k in range(10))
    shown(browser, made(samples, budget=450 * MIB), tmp_path / "report.html")
    script = """[...document.querySelectorAll('.line')].map(l => {
        const plot = document.getElementById('plot').getBoundingClientRect();
        return [l.textContent, (plot.bottom - l.getBoundingClientRect().top) / plot.height];
    })"""
    lines = dict(browser.evaluate(script))
    assert set(lines) == {"budget 450 MiB", "cgroup limit 1.17 GiB"}
    assert lines["budget 450 MiB"] / lines["cgroup limit 1.17 GiB"] == pytest.approx(450 / 1200, rel=0.03)


def test_a_limit_far_above_is_named_and_does_not_flatten_the_plot(browser: Browser, tmp_path: Path) -> None:
    shown(browser, mapped_trace(budget=None), tmp_path / "report.html")
    assert browser.evaluate("document.querySelector('.line.above').textContent").startswith(
        "memory of the machine 24.0 GiB"
    )
    height = browser.evaluate("document.querySelector('path.area.cache').getBoundingClientRect().height")
    assert height > 0.8 * browser.evaluate("document.getElementById('plot').clientHeight")


def test_ten_thousand_samples_stay_a_small_page_with_their_peaks(browser: Browser, tmp_path: Path) -> None:
    trace = long_trace(10_000)
    page = tmp_path / "report.html"
    shown(browser, trace, page)
    assert page.stat().st_size < 200_000
    data = json.loads(browser.evaluate("document.getElementById('data').textContent"))
    assert max(data["kinds"]["anon"]) == 900 * MIB
    assert max(data["kinds"]["shmem"]) == 5 * MIB
    assert "of 10,000 samples drawn" in browser.evaluate("document.body.innerText")


@pytest.mark.parametrize("count", [0, 1, 2])
def test_very_short_traces_still_make_a_page(browser: Browser, tmp_path: Path, count: int) -> None:
    shown(browser, mapped_trace(count), tmp_path / "report.html")
    assert browser.problems == []
    text = browser.evaluate("document.body.innerText")
    assert ("nothing to draw" in text) == (count == 0)
    assert "NaN" not in text
    assert browser.evaluate("document.querySelectorAll('path.area').length > 0") == (count > 0)


def light_of(colour: str) -> float:
    """Relative luminance of ``rgb(r, g, b)`` as WCAG 2 defines it."""
    channels = [int(word) / 255 for word in colour[4:-1].split(",")]
    linear = [each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in channels]
    return sum(share * each for share, each in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one: str, other: str) -> float:
    low, high = sorted((light_of(one), light_of(other)))
    return (high + 0.05) / (low + 0.05)


def pixels_of(png: bytes) -> Any:
    """A function (x, y) -> (red, green, blue) for an 8-bit PNG, by the standard library."""
    width, _, depth, kind = struct.unpack(">IIBB", png[16:26])
    assert depth == 8 and kind in (2, 6)
    wide = 3 if kind == 2 else 4
    place, packed = 8, b""
    while place < len(png):
        (length,) = struct.unpack(">I", png[place : place + 4])
        if png[place + 4 : place + 8] == b"IDAT":
            packed += png[place + 8 : place + 8 + length]
        place += length + 12
    raw, stride, rows = zlib.decompress(packed), width * wide, []
    before = bytearray(stride)
    for start in range(0, len(raw), stride + 1):
        before = _unfilter(raw[start], bytearray(raw[start + 1 : start + 1 + stride]), before, wide)
        rows.append(before)
    return lambda x, y: tuple(rows[y][x * wide : x * wide + 3])


def _unfilter(kind: int, row: bytearray, before: bytearray, wide: int) -> bytearray:
    for place in range(len(row)):
        left = row[place - wide] if place >= wide else 0
        up, corner = before[place], before[place - wide] if place >= wide else 0
        near = min((left, up, corner), key=lambda each: abs(left + up - corner - each))
        row[place] = (row[place] + (0, left, up, (left + up) // 2, near)[kind]) & 255
    return row
