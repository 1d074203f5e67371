"""Builds the site of these pages: ``make site``. Offline, with nothing fetched from elsewhere when it is read.

Pages link to files of the repository, which a site does not have: an example becomes a section of one page of
examples, and README, CONTRIBUTING, SECURITY and CHANGELOG become pages. Everything else is copied as it is. A page that
the navigation does not name, or names and does not find, ends the build.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
OF_ROOT = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "CHANGELOG.md": "changelog.md",
}
WORKER = "worker.js"  # named in zensical.toml
_WORKER_FROM_TEXT = """if (location.protocol === "file:") {
  const FromFile = Worker, source = SOURCE;
  window.Worker = class extends FromFile {
    constructor() { super(URL.createObjectURL(new Blob([source], {type: "text/javascript"}))); }
  };
}
"""
_LINK = re.compile(r"\]\(([^)\s#]+)(#[^)\s]*)?\)")


def lay_out(root: Path, target: Path) -> None:
    """The pages as the site has them, with their links."""
    docs = root / "docs"
    shutil.rmtree(target, ignore_errors=True)
    for page in sorted(docs.rglob("*.md")):
        place = target / page.relative_to(docs)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(_linked(page.read_text("utf-8"), page.parent, docs, docs), "utf-8")
    shutil.copytree(docs / "pictures", target / "pictures")
    shutil.copy(docs / "extra.css", target / "extra.css")
    (target / WORKER).write_text("")  # filled once the theme's own is there
    for name, page_name in OF_ROOT.items():
        if name != "README.md":
            (target / page_name).write_text(_linked((root / name).read_text("utf-8"), root, docs, docs), "utf-8")
    (target / "examples.md").write_text(_examples(root / "examples"), "utf-8")


def _linked(text: str, here: Path, docs: Path, home: Path) -> str:
    """The text with links that leave the pages turned to where the site has what they meant."""
    up = "../" * len(here.relative_to(docs).parts) if here.is_relative_to(docs) else ""

    def turned(match: re.Match[str]) -> str:
        target, heading = match[1], match[2] or ""
        if re.match(r"[a-z]+:", target):
            return match[0]
        file = (here / target).resolve()
        if file.is_relative_to(home):
            inside = file.relative_to(home).as_posix()
            return f"]({target if up or here == home else inside}{heading})"
        if file.name == "examples":
            return f"]({up}examples.md)"
        if file.parent.name == "examples":
            return f"]({up}examples.md#{_slug(file.name)})"
        if file.name in OF_ROOT:
            return f"]({up}{OF_ROOT[file.name]}{heading})"
        raise SystemExit(f"{here}: expected a link to a page, an example or a page of the root, got {target}.")

    return _LINK.sub(turned, text)


def _examples(directory: Path) -> str:
    parts = ["# Examples\n\nWhole programs, as they lie in `examples/`.\n"]
    languages = {".py": "python", ".toml": "toml", ".json": "json"}
    parts += [
        f"## {file.name}\n\n```{languages[file.suffix]}\n{file.read_text('utf-8').rstrip()}\n```\n"
        for file in sorted(directory.iterdir())
        if file.suffix in languages
    ]
    return "\n".join(parts)


def _slug(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def named_pages(entries: list[dict[str, Any]]) -> Iterator[str]:
    """The pages that a navigation names, in its order."""
    for entry in entries:
        for value in entry.values():
            if isinstance(value, str):
                yield value
            else:
                yield from named_pages(value)


def main() -> int:
    settings = ROOT / "docs" / "zensical.toml"
    place = ROOT / "build" / "site"
    lay_out(ROOT, place / "pages")
    shutil.copy(settings, place / "zensical.toml")
    named = set(named_pages(tomllib.loads(settings.read_text("utf-8"))["project"]["nav"]))
    found = {page.relative_to(place / "pages").as_posix() for page in (place / "pages").rglob("*.md")}
    if named != found:
        print(f"docs/zensical.toml: expected every page once, got {sorted(named ^ found)} on one side only.")
        return 1
    shutil.rmtree(place / "site", ignore_errors=True)
    built = subprocess.run([sys.executable, "-m", "zensical", "build", "--clean"], cwd=place, check=False)
    if built.returncode == 0:
        search_without_a_server(place / "site")
    return built.returncode


def search_without_a_server(site: Path) -> None:
    """Browsers let a page that was opened from a directory neither load JSON nor start a worker from a file. There the
    theme looks for the index as a script, and we give it its worker as text."""
    (site / "search.js").write_text(f"var __index = {(site / 'search.json').read_text('utf-8')};\n", "utf-8")
    (worker,) = site.glob("assets/javascripts/workers/search.*.js")
    source = json.dumps(worker.read_text("utf-8")).replace("</", "<\\/")
    (site / WORKER).write_text(_WORKER_FROM_TEXT.replace("SOURCE", source), "utf-8")


if __name__ == "__main__":
    raise SystemExit(main())
