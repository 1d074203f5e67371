"""The documents: links lead somewhere, Python runs as it stands, commands and flags exist, generated parts are fresh.

Every Python block of a page runs in a fresh directory, in a process of its own, with the blocks before it; a failure
names the page and its line. Two comments of a page steer this: ``<!-- not run: reason -->`` before a block has it
compiled only, and ``<!-- run first: ... -->`` is Python that makes the files a page takes for granted.
"""

from __future__ import annotations

import ast
import doctest
import importlib
import importlib.util
import inspect
import json
import os
import re
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from tests.test_package import LAYERS, LEVEL

import lowtide
from lowtide import cli

ROOT = Path(__file__).parents[1]
PAGES = [
    *(ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "SECURITY")),
    *sorted((ROOT / "docs").rglob("*.md")),
]

# Names that pages teach before they are merged: a block or link that needs one is skipped, loudly, while it is missing.
# An entry whose name exists has no effect. Everything is in: all three are empty.
COMING: dict[str, str] = {}  # text in a block -> the dotted name it needs, such as "lowtide.mix(": "lowtide.mix"
COMING_PAGES: set[str] = set()
COMING_COMMANDS: set[str] = set()

# Kinds of error: what raises them says so.
NO_EXAMPLE = {"FormatError", "StateError", "ReadError", "WriteError", "BudgetError"}

# Pages whose Python is edits of the reader's own program, and the test that makes them.
COMPILED_ONLY = {"nanogpt.md": "edits of a training script: tests/train/test_train_nanogpt.py"}

# Files that a page takes for granted, where it does not make them in a comment of its own; and what that needs.
RUN_FIRST = {
    "documents.md": """
import numpy as np
from pathlib import Path
Path("corpus").mkdir()
(np.arange(200_000) % 431 + 50_257 - 431).astype("uint16").tofile("corpus/a.bin")
""",
    "mixtures.md": """
import json, numpy as np
from pathlib import Path
for name in ("web", "code", "math"):
    Path(name).mkdir()
    np.zeros(200_000, "uint16").tofile(f"{name}/a.bin")
    shards = [{"file": "a.bin", "tokens": 200_000}]
    Path(name, "manifest.json").write_text(json.dumps({"lowtide": 1, "dtype": "uint16", "shards": shards}))
""",
    "formats.md": """
import numpy as np, pyarrow, pyarrow.parquet
from pathlib import Path
for name in ("shards", "ids"):
    Path(name).mkdir()
rows = np.arange(20 * 162, dtype="f4").reshape(20, 162)
np.save("features.npy", rows)
rows.tofile("x.f32")
np.savez("arrays.npz", X=rows, y=np.arange(20))
for name in ("train.bin", "shards/0.bin", "shards/1.bin", "web.ds"):
    np.arange(100, dtype="u2").tofile(name)
np.array([60, 100], "u8").tofile("web.ds.index")
pyarrow.parquet.write_table(pyarrow.table({"input_ids": [[1, 2], [3]]}), "ids/0.parquet")
""",
    "prepare.md": """
import json, tokenizers
from pathlib import Path
Path("texts").mkdir()
lines = [json.dumps({"text": f"Document {number} tells of the tide. " * 5}) for number in range(400)]
Path("texts/a.jsonl").write_text("\\n".join(lines) + "\\n")
made = tokenizers.Tokenizer(tokenizers.models.BPE())
made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
made.decoder = tokenizers.decoders.ByteLevel()
alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
made.train_from_iterator(lines, tokenizers.trainers.BpeTrainer(
    vocab_size=400, initial_alphabet=alphabet, special_tokens=["<|endoftext|>"], show_progress=False))
made.save("tokenizer.json")
""",
    "train.md": """
import numpy as np
from lowtide.cli import main
(np.arange(20_000) % 64).astype("u2").tofile("tokens.bin")
tiny = "--batch-size 4 --block-size 16 --n-layer 1 --n-head 2 --n-embd 16 --max-iters 4 --eval-iters 1 --no-picture"
main(f"train --data tokens.bin --data-dtype uint16 --vocab-size 64 --val-fraction 0.1 {tiny}".split())
""",
}
NEEDED = {
    "documents.md": "torch",
    "formats.md": "pyarrow",
    "prepare.md": "tokenizers",
    "train.md": "safetensors",
    "stateful-dataloader.md": "torchdata",
    "trees.md": "faiss",
}  # beside the package itself

_FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)\s]+)[^)]*\)")
_PYTHON = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
_NOT_RUN = re.compile(r"<!-- not run: .+? -->\s*\Z", re.DOTALL)
_RUN_FIRST = re.compile(r"^<!-- run first:\n(.*?)^-->", re.MULTILINE | re.DOTALL)
_ANY_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_SHELLS = {"", "sh", "bash", "console"}


@dataclass(frozen=True)
class Block:
    """Python of a page, padded so that its lines have the page's numbers."""

    code: str
    line: int
    run: bool

    @property
    def gives(self) -> set[str]:
        return {name.id for name in self._names() if isinstance(name.ctx, ast.Store)}

    @property
    def needs(self) -> set[str]:
        """Names it uses and does not give itself."""
        return {name.id for name in self._names() if isinstance(name.ctx, ast.Load)} - self.gives

    def _names(self) -> list[ast.Name]:
        return [node for node in ast.walk(ast.parse(self.code)) if isinstance(node, ast.Name)]


def links(page: Path) -> list[str]:
    """Targets of the links and images of a page that lead nowhere else than into this repository."""
    text = _FENCED.sub("", page.read_text(encoding="utf-8"))
    return [target for target in _LINK.findall(text) if not re.match(r"[a-z]+:", target)]


def anchors(page: Path) -> set[str]:
    """Headings of a page as links name them."""
    text = _FENCED.sub("", page.read_text(encoding="utf-8"))
    headings = re.findall(r"^#+ +(.+?) *$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    found = []
    for match in sorted([*_RUN_FIRST.finditer(text), *_PYTHON.finditer(text)], key=lambda match: match.start()):
        line = text.count("\n", 0, match.start(1))
        found.append(Block("\n" * line + match[1], line + 1, not _NOT_RUN.search(text, 0, match.start())))
    return found


def missing(dotted: str) -> bool:
    """Whether there is no such name (yet)."""
    module, _, rest = dotted.partition(".")
    here: Any = importlib.import_module(module)
    for part in rest.split("."):
        if not hasattr(here, part):
            try:
                importlib.import_module(f"{getattr(here, '__name__', '')}.{part}")
            except ImportError:
                return True
        here = getattr(here, part)
    return False


def commands(page: Path) -> list[str]:
    """Command lines of a page: in its blocks for a shell, in its indented blocks, and in backquotes."""
    text = page.read_text(encoding="utf-8")
    shell = [block for language, block in _ANY_BLOCK.findall(text) if language in _SHELLS]
    lines = [line for block in shell for line in block.replace("\\\n", " ").splitlines()]
    lines += re.findall(r"^    (.*)$", _FENCED.sub("", text), re.MULTILINE)
    lines += re.findall(r"`([^`\n]+)`", _FENCED.sub("", text))
    lines = [re.sub(r"\s#.*", "", line).removeprefix("$ ").strip() for line in lines]
    return [line for line in lines if re.match(r"(lowtide|make) [a-z-]+( |$)", line)]


def generator() -> ModuleType:
    """``docs/generate.py``, which writes what ``make docs`` keeps fresh."""
    spec = importlib.util.spec_from_file_location("generate_docs", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_relative_link_and_picture_of_a_page_exists(page: Path) -> None:
    gone, coming = [], []
    for target in links(page):
        path, _, heading = target.partition("#")
        file = page.parent / path if path else page
        if not file.exists() and file.name in COMING_PAGES:
            coming.append(target)
        elif not file.exists() or (heading and heading not in anchors(file)):
            gone.append(target)
    assert not gone, f"{page.name} links to what is not there"
    if coming:
        pytest.skip(f"NOT TESTED: links of {page.name} to pages that are not merged yet: {', '.join(coming)}")


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=lambda page: page.name)
def test_every_python_block_of_a_page_compiles(page: Path) -> None:
    for block in blocks(page):
        compile(block.code, str(page), "exec")


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", [page for page in PAGES if blocks(page) and page.name not in COMPILED_ONLY], ids=lambda page: page.name
)
def test_every_python_block_of_a_page_runs_in_a_fresh_directory(page: Path, tmp_path: Path) -> None:
    needed = NEEDED.get(page.name, "lowtide")
    pytest.importorskip(needed, reason=f"NOT TESTED: the Python of {page.name}, because {needed} is missing")
    run, skipped, lost = [Block(RUN_FIRST.get(page.name, ""), 1, True)], [], set[str]()
    for block in (block for block in blocks(page) if block.run):
        wanted = [name for text, name in COMING.items() if text in block.code and missing(name)]
        unknown = block.needs & lost
        if wanted or unknown:  # what this block would have given is not there for later ones
            skipped.append(f"line {block.line} ({', '.join(wanted or sorted(unknown))})")
            lost |= block.gives
        else:
            run.append(block)
            lost -= block.gives
    _run(page, run, tmp_path)
    if skipped:
        pytest.skip(f"NOT TESTED: blocks of {page.name} that need names not merged yet: {'; '.join(skipped)}")


def _run(page: Path, run: list[Block], directory: Path) -> None:
    program = (
        "import json, sys\n"
        "page, codes, scope = sys.argv[1], json.load(sys.stdin), {'__name__': 'page'}\n"
        "for code in codes:\n"
        "    exec(compile(code, page, 'exec'), scope)\n"
    )
    source = str(Path(lowtide.__file__).parent.parent)
    places = os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH", "")]))
    done = subprocess.run(
        [sys.executable, "-W", "error::SyntaxWarning", "-c", program, str(page)],
        input=json.dumps([block.code for block in run]),
        capture_output=True,
        text=True,
        cwd=directory,
        env={**os.environ, "PYTHONPATH": places, "OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": str(directory / "cache")},
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, f"{page.name}: {done.stderr[-3000:]}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_and_flag_a_page_shows_exists(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    wrong: list[str] = []
    coming: list[str] = []
    for line in commands(page):
        program, command, *words = line.split()
        if program == "make":
            wrong += [line] if command not in targets else []
            continue
        if command not in cli.COMMANDS:
            (coming if command in COMING_COMMANDS else wrong).append(line)
            continue
        own = words[: words.index("--")] if "--" in words else words
        flags = {word.partition("=")[0].replace("_", "-") for word in own if word.startswith("--")}
        wrong += [line] if flags - _flags(command, capsys) else []
    assert not wrong, f"{page.name} shows commands or flags that do not exist"
    if coming:
        pytest.skip(f"NOT TESTED: commands on {page.name} that are not merged yet: {'; '.join(coming)}")


def _flags(command: str, capsys: pytest.CaptureFixture[str]) -> set[str]:
    with pytest.raises(SystemExit):
        cli.main([command, "--help"])
    return set(re.findall(r"--[a-z][a-z0-9-]*", capsys.readouterr().out))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_extra_that_a_page_installs_exists(page: Path) -> None:
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    shown = re.findall(r"pip install [^\n`]*?(?:lowtide|\.)\[([\w,-]+)\]", page.read_text("utf-8"))
    assert {extra for one in shown for extra in one.split(",")} <= set(known)


def test_the_design_page_shows_the_layers_that_are_tested() -> None:
    block = re.search(
        r"^```\n(errors .*?)^```", (ROOT / "docs" / "design.md").read_text("utf-8"), re.MULTILINE | re.DOTALL
    )
    assert block is not None
    shown = [{room for room in layer.split() if room in LEVEL} for layer in block[1].split("<")]
    assert [layer for layer in shown if layer] == LAYERS


def test_the_generated_pages_are_up_to_date() -> None:
    stale = [name for name, text in generator().pages(ROOT).items() if (ROOT / name).read_text("utf-8") != text]
    assert not stale, f"run `make docs` to write {stale} anew"


@pytest.mark.slow
def test_the_examples_of_public_docstrings_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("features.npy", np.zeros((20_000, 162), "f4"))
    (np.arange(200_000) % 50257).astype("u2").tofile("train.bin")
    without = []
    for name, thing in generator().documented():
        if getattr(thing, "__module__", "") in (
            "lowtide.dask",
            "lowtide.ray",
            "lowtide.xgboost",
            "lowtide.lightgbm",
        ):  # they start clusters or need packages of their own: their own tests run these calls
            continue
        scope: dict[str, Any] = {"lowtide": lowtide, "np": np, "a": lowtide.open("features.npy")}
        scope["tokens"] = lowtide.open_tokens("train.bin", dtype="uint16")
        scope["feed"] = scope["tokens"].batches(64, length=128)
        examples = doctest.DocTestParser().get_examples(inspect.getdoc(thing) or "", name)
        for example in examples:
            exec(compile(example.source, f"the docstring of {name}", "exec"), scope)
        without += [name] if name in lowtide.__all__ and name not in NO_EXAMPLE and not examples else []
    assert not without, "public names whose docstring has no example"


def test_the_checks_see_links_pictures_headings_blocks_and_commands(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# A page\n\n![p](docs/p.png) and [there](other.md#a-page)\n\n<!-- run first:\nn = 1\n-->\n\n"
        "```python\nm = n\n```\n\n<!-- not run: CUDA -->\n```python\nk = 1 / 0\n```\n\n"
        "```sh\nlowtide info x --json   # says --what\n```\n\nlowtide prose\n\n    lowtide plan x\n\n`make test`\n"
    )
    assert links(page) == ["docs/p.png", "other.md#a-page"]
    assert anchors(page) == {"a-page"}
    assert [(block.code.strip(), block.line, block.run) for block in blocks(page)] == [
        ("n = 1", 6, True),
        ("m = n", 10, True),
        ("k = 1 / 0", 15, False),
    ]
    assert commands(page) == ["lowtide info x --json", "lowtide plan x", "make test"]
    with pytest.raises(AssertionError, match=r"page\.md"):
        _run(page, [Block("\n\nraise SystemExit(3)", 3, True)], tmp_path)
