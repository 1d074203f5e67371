"""A corpus of the English a machine has anyway: manual pages, READMEs and other documentation, docstrings.

No download: the plain sentences of a page become a document, each sentence once, pages ordered by name alone. A
machine with hardly any is given Python's sources instead: every machine with Python has those. A byte-level BPE is
trained on it (a byte is a token if no tokenizer is installed); train and val are divided by document hash, so that the
val loss is about pages the model never saw. Prepared once in Lowtide's cache directory and reused until Python's
packages change.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import re
import sys
import sysconfig
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import chain
from pathlib import Path

from lowtide.corpus.journal import WORK
from lowtide.corpus.request import Request
from lowtide.errors import FormatError
from lowtide.formats.tokens.manifest import MANIFEST
from lowtide.prepare import prose
from lowtide.prepare.job import Status, prepare
from lowtide.prepare.resources import Resources

VOCAB = 4096  # the output layer of a small model costs as much as all its blocks at 8,192 ids
CORPUS_PREFIX = "corpus-machine-"  # how its directory in the cache begins
WORDS_NEED = "tokenizers"  # the package; without it, a byte is a token
VAL = 0.01
TOKENS = 40_000_000  # about; more text than this is left out
_PAGES = (".rst", ".md", ".txt")
_SOURCES = (".py",)
# Installed packages are walked where they are installed for this interpreter, not below the standard library.
_PASSED_OVER = frozenset({"__pycache__", ".git", "node_modules", "site-packages", "dist-packages", "test", "tests"})
_MANUALS = ("/usr/share/man", "/usr/local/share/man")
_DOCUMENTATION = "/usr/share/doc"
_LONGEST = 512 * 1024  # bytes; longer files are tables and generated code
_MOST_OF_A_FAMILY = 200  # manual pages whose names begin alike: one tool here has 16,000 of them
_ENOUGH = 10_000_000  # tokens of pages; with fewer, docstrings fill the corpus up to this many
_ENOUGH_FOR_WORDS = 16_000_000  # characters of paragraphs that say which words are common
_LEAST = 1_000_000  # bytes; with fewer, sources: some systems ship the library as bytecode or in a zip file
_BYTES_PER_TOKEN = 4.0  # of such text with 4,096 ids, measured


@dataclass(frozen=True)
class MachineCorpus:
    """Where the corpus is and how large it is."""

    path: Path  # holds train/ and val/
    tokens: int
    bytes: int  # of both parts' shards
    made: bool  # False: it was there already


def machine_corpus(
    cache: str | Path | None = None,
    roots: Sequence[str | Path] = (),
    tokens: int = TOKENS,
    progress: Callable[[Status], None] = lambda _: None,
) -> MachineCorpus:
    """The corpus of this machine's text, prepared now unless the cache has it.

    ``roots``: directories to take text from; by default those of the manual and the system's documentation, and the
    standard library and packages of this interpreter.
    """
    kind = ["passages of plain sentences", f"bpe {VOCAB}" if has_words() else "bytes"]
    key = hashlib.sha256("\n".join([str(tokens), *kind, *(map(str, roots) if roots else _installed())]).encode())
    target = (Path(cache) if cache is not None else _cache_directory()) / f"{CORPUS_PREFIX}{key.hexdigest()[:12]}"
    made = not (target / "val" / MANIFEST).is_file() or (target / WORK).exists()
    if made:
        _prepare(_texts(roots, tokens, _BYTES_PER_TOKEN if has_words() else 1.0), target, progress)
    manifests = [json.loads((target / part / MANIFEST).read_bytes()) for part in ("train", "val")]
    size = sum(path.stat().st_size for path in target.glob("*/*.bin"))
    return MachineCorpus(target, sum(manifest["tokens"] for manifest in manifests), size, made)


def has_words() -> bool:
    """Whether a BPE can be trained and read here."""
    return find_spec(WORDS_NEED) is not None


def _prepare(texts: Iterator[str], target: Path, progress: Callable[[Status], None]) -> None:
    """Prepare by way of one file of JSON lines, so that thousands of small files become one input in one order."""
    target.parent.mkdir(parents=True, exist_ok=True)
    gathered = target.parent / f"{target.name}.jsonl"
    if not gathered.exists():
        progress(Status("gathering"))
        growing = gathered.with_suffix(f".{os.getpid()}.part")
        try:
            with growing.open("w", encoding="utf-8") as output:
                for text in texts:
                    output.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
            growing.replace(gathered)
        finally:
            growing.unlink(missing_ok=True)
    bpe = VOCAB if has_words() else 0
    request = Request(train_bpe=bpe, val=VAL, dedup=True, invalid_utf8="replace", shard_tokens=20_000_000)
    prepare([str(gathered)], target, request, Resources(), progress)
    gathered.unlink()


def _texts(roots: Sequence[str | Path], tokens: int, bytes_per_token: float) -> Iterator[str]:
    """Documents until there are about so many tokens: pages, then docstrings, and sources where that is too little."""
    places = [Path(root) for root in roots] or _own_places()
    files = [file for place in places for file in _files(place)]
    sources = [file for file in files if file.name.endswith(_SOURCES)]
    pages = [*(() if roots else _manual_pages()), *(file for file in files if not file.name.endswith(_SOURCES))]
    most = int(tokens * bytes_per_token)
    enough, least = min(most, int(_ENOUGH * bytes_per_token)), min(most, _LEAST)
    total, seen = 0, set[int]()
    candidates = chain(
        ((most, _prose(one, seen)) for one in _ordered(pages)),
        ((enough, _prose(one, seen)) for one in _ordered(sources)),
    )
    for until, text in _in_common_words(candidates):
        if total >= until:
            break
        total += len(text)
        yield text
    for file in _ordered(sources):
        if total >= least:
            break
        text = _content(file)
        total += len(text)
        if text:
            yield text
    if total < least:
        raise FormatError(
            f"{', '.join(map(str, places))}: expected {_LEAST} bytes or more of documentation and sources, got {total}."
            " Name token files of your own with --data."
        )


@dataclass(frozen=True)
class _TextFile:
    name: str  # below the directory that was walked: what decides its place
    path: str


def _reader(file: _TextFile) -> Callable[[str], list[str]] | None:
    """What finds the paragraphs of a file; None for a file that has none."""
    name = file.name.rpartition("/")[2].removesuffix(".gz")
    if name.endswith(_SOURCES):
        return prose.of_module
    if name == "METADATA":
        return prose.of_metadata
    if name.endswith(_PAGES) or name.startswith("README"):
        return prose.of_page
    return prose.of_manual if file.path.startswith(_MANUALS) else None


def _prose(file: _TextFile, seen: set[int]) -> list[str]:
    """The plain sentences of a file, in passages, without those that were seen before."""
    reader = _reader(file)
    paragraphs = reader(_content(file)) if reader else []
    return [one for paragraph in paragraphs for one in prose.passages(paragraph, seen)]


def _in_common_words(candidates: Iterator[tuple[int, list[str]]]) -> Iterator[tuple[int, str]]:
    """Documents of those paragraphs that the words of the first ones, which are held for that, are enough for."""
    first, held = [], 0
    for candidate in candidates:
        first.append(candidate)
        held += sum(map(len, candidate[1]))
        if held >= _ENOUGH_FOR_WORDS:
            break
    common = prose.common_words(paragraph for _, paragraphs in first for paragraph in paragraphs)
    for until, paragraphs in chain(first, candidates):
        if text := "\n".join(one for one in paragraphs if prose.in_common_words(one, common)):
            yield until, text


def _content(file: _TextFile) -> str:
    try:
        content = Path(file.path).read_bytes()
        content = gzip.decompress(content) if file.path.endswith(".gz") else content
    except (OSError, EOFError, zlib.error):  # gone, another user's, or damaged: there are others
        return ""
    return content.decode("utf-8", "replace") if len(content) <= _LONGEST else ""


def _ordered(files: Sequence[_TextFile]) -> list[_TextFile]:
    """Each name once, in an order that only names decide."""
    found: dict[str, _TextFile] = {}
    for file in files:
        found.setdefault(file.name, file)
    return sorted(found.values(), key=lambda one: hashlib.sha256(one.name.encode("utf-8", "surrogateescape")).digest())


def _files(root: Path) -> Iterator[_TextFile]:
    """Sources and documentation below a directory."""
    for directory, inner, names in os.walk(root):
        inner[:] = sorted(name for name in inner if name not in _PASSED_OVER)
        for name in sorted(names):
            path = os.path.join(directory, name)  # noqa: PTH118
            file = _TextFile(os.path.relpath(path, root), path)
            if _reader(file) is not None and not os.path.islink(path) and 0 < os.stat(path).st_size <= _LONGEST:  # noqa: PTH114, PTH116
                yield file


def _manual_pages() -> Iterator[_TextFile]:
    """The pages of the English manual, a bounded number of each family."""
    families: Counter[str] = Counter()
    for root in _MANUALS:
        for section in sorted(Path(root).glob("man[1-9]")):
            for path in sorted(section.iterdir()):
                family = re.split("[-_.:]", path.name)[0]
                if families[family] < _MOST_OF_A_FAMILY and not path.is_symlink() and path.is_file():
                    families[family] += 1
                    yield _TextFile(f"{section.name}/{path.name}", str(path))


def _installed() -> list[str]:
    """Python and every installed package with its version: an equal list means equal text, and no file is read."""
    from importlib.metadata import distributions  # only here: 8 ms, which workers of prepare need not pay

    found = {f"{one.metadata['Name']}=={one.version}" for one in distributions()}
    return [f"python {sys.version_info[:3]}", *sorted(found)]


def _own_places() -> list[Path]:
    """The standard library, where packages are installed for this interpreter, and the system's documentation."""
    packages = [path for place in sys.path if (path := Path(place)).name in ("site-packages", "dist-packages")]
    return [Path(sysconfig.get_path("stdlib")), *dict.fromkeys(packages), Path(_DOCUMENTATION)]


def _cache_directory() -> Path:
    if chosen := os.environ.get("LOWTIDE_CACHE"):
        return Path(chosen)
    if shared := os.environ.get("XDG_CACHE_HOME"):
        return Path(shared) / "lowtide"
    return Path.home() / ".cache" / "lowtide"
