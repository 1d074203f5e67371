"""The site that ``make site`` builds: every page is in it, every link inside it leads somewhere, it needs nothing from
elsewhere, and its search finds things in a real browser."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urldefrag

import pytest
from tests.report import browser

ROOT = Path(__file__).parents[1]
FOUND = """[...document.querySelectorAll('*')].filter(e => e.shadowRoot).map(e => e.shadowRoot.textContent).join(' ')"""


class Page(HTMLParser):
    """What a page links to (``links``), loads (``loads``), and can be linked at (``anchors``)."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.anchors: set[str] = set()
        self.feed(path.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        has = {name: value or "" for name, value in attrs}
        self.anchors |= {has["id"]} if "id" in has else set()
        if tag == "a" and "href" in has:
            self.links.append(has["href"])
        elif tag in ("script", "img", "iframe") and "src" in has:
            self.loads.append(has["src"])
        elif tag == "link" and has.get("rel") in ("stylesheet", "icon", "preload", "modulepreload"):
            self.loads.append(has.get("href", ""))


def wait_for(page: browser.Browser, condition: str) -> None:
    """However slow the machine is."""
    ends = time.monotonic() + 120
    while not page.evaluate(condition):
        assert time.monotonic() < ends, condition
        time.sleep(0.2)


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("zensical", reason="NOT TESTED: the site, because zensical is not installed")
    copy = tmp_path_factory.mktemp("site")  # so that two runs of the tests do not build into one directory
    for name in ("docs", "examples"):
        shutil.copytree(ROOT / name, copy / name)
    for page in ROOT.glob("*.md"):
        shutil.copy(page, copy)
    done = subprocess.run([sys.executable, copy / "docs" / "site.py"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return copy / "build" / "site" / "site"


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


@pytest.mark.slow
def test_every_link_of_the_site_leads_to_a_page_and_a_heading_of_it(site: Path) -> None:
    pages = {path: Page(path) for path in site.rglob("*.html") if path.name != "404.html"}
    assert len(pages) > 20
    broken = []
    for path, page in pages.items():
        for link in page.links:
            if "://" in link or link.startswith(("mailto:", "javascript:")):
                continue
            target, heading = urldefrag(link)
            file = (path.parent / unquote(target)).resolve() if target not in ("", ".") else path
            file = file / "index.html" if file.is_dir() else file
            if not file.exists() or (heading and file in pages and unquote(heading) not in pages[file].anchors):
                broken.append(f"{path.relative_to(site)}: {link}")
    assert not broken


@pytest.mark.slow
def test_no_page_of_the_site_loads_anything_from_elsewhere(site: Path) -> None:
    for path in site.rglob("*.html"):
        assert not [each for each in Page(path).loads if "://" in each or each.startswith("//")], path.name


@pytest.mark.slow
@pytest.mark.parametrize("width", [1280, 400])
def test_the_site_in_a_browser_fits_its_window_and_its_search_finds_a_name(address: str, width: int) -> None:
    program = browser.find()
    if program is None:
        pytest.skip("NOT TESTED: the site in a browser - there is no chromium here")
    with browser.Browser(program) as page:
        page.look(width=width, height=900, dark=width == 400)
        page.open(f"{address}/index.html")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert not [each for each in page.requests if not each.startswith((address, "data:"))]
        page.evaluate("document.querySelector('.md-search__button').click()")
        wait_for(page, "document.activeElement?.shadowRoot?.activeElement?.tagName === 'INPUT'")
        page.type("BudgetError")
        wait_for(page, f"{FOUND}.includes('cannot be held inside the budget')")
        assert not page.problems


@pytest.mark.slow
def test_the_search_works_without_a_server(site: Path) -> None:
    """Opened from a directory, the theme looks for search.js, which zensical does not write."""
    program = browser.find()
    if program is None:
        pytest.skip("NOT TESTED: the site in a browser - there is no chromium here")
    with browser.Browser(program) as page:
        page.look(width=1280, height=900)
        page.open(site / "index.html")
        page.evaluate("document.querySelector('.md-search__button').click()")
        wait_for(page, "document.activeElement?.shadowRoot?.activeElement?.tagName === 'INPUT'")
        page.type("BudgetError")
        wait_for(page, f"{FOUND}.includes('cannot be held inside the budget')")
        assert not page.problems
