"""The documents: every relative link leads to a file, every heading linked to is there, Python in them compiles."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
TAUGHT = [ROOT / "README.md", ROOT / "docs" / "quickstart.md"]

_FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)\s]+)[^)]*\)")
_PYTHON = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def links(page: Path) -> list[str]:
    """Targets of the links and images of a page that lead nowhere else than into this repository."""
    text = _FENCED.sub("", page.read_text(encoding="utf-8"))
    return [target for target in _LINK.findall(text) if not re.match(r"[a-z]+:", target)]


def anchors(page: Path) -> set[str]:
    """Headings of a page as links name them."""
    text = _FENCED.sub("", page.read_text(encoding="utf-8"))
    headings = re.findall(r"^#+ +(.+?) *$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def parsable(block: str) -> str:
    """A block as a program: a decorator shown alone gets something to decorate."""
    return re.sub(r"^(@.*)\n?\Z", r"\1\ndef test_it(): ...\n", block, flags=re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_relative_link_and_picture_of_a_page_exists(page: Path) -> None:
    missing = []
    for target in links(page):
        path, _, heading = target.partition("#")
        file = page.parent / path if path else page
        if not file.exists() or (heading and heading not in anchors(file)):
            missing.append(target)
    assert not missing, f"{page.name} links to what is not there"


@pytest.mark.parametrize("page", TAUGHT, ids=lambda page: page.name)
def test_python_in_the_first_pages_compiles(page: Path) -> None:
    blocks = _PYTHON.findall(page.read_text(encoding="utf-8"))
    assert blocks
    for number, block in enumerate(blocks):
        compile(parsable(block), f"{page.name}, block {number}", "exec")


def test_the_link_check_sees_links_pictures_and_headings() -> None:
    assert "docs/pictures/cures.png" in links(ROOT / "README.md")
    assert "the-kinds" in anchors(ROOT / "docs" / "doctor.md")
