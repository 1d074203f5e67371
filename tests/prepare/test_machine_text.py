"""The corpus of this machine's own text, and the control that holds all of it."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.prepare.conftest import make_documents, snapshot

import lowtide
from lowtide.errors import FormatError
from lowtide.prepare import decoder_of, kept_memmap, machine_corpus, machine_text, prose

LOW = "is low, as pages say in words that are common, and the boats lie on the sand until it comes back."
LICENCE = (
    "The licence of all pages is the same, and stands in each of them, although nobody reads it there or anywhere."
)
EXPLAINED = "explains the tide in a sentence that is long enough to be kept, as it goes on for some more words."


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small machine: sources, a header, documentation, and what is not text."""
    directory = tmp_path_factory.mktemp("root")
    for number, text in enumerate(make_documents(900, longest=600)):
        path = directory / f"{number}{('.py', '.h', '.rst')[number % 3]}"
        if path.suffix == ".rst":
            said = (f"The tide of day {number * 60 + hour} {LOW}" for hour in range(60))
            text = "\n\n".join(("Heading", *said, LICENCE))
        elif path.suffix == ".py":
            text = f'"""The module of day {number} {EXPLAINED}"""\nimport sources\n{text}'
        path.write_text(f"{'include headers' if path.suffix == '.h' else ''}{text}", encoding="utf-8")
    (directory / "binary.so").write_bytes(bytes(1000))
    return directory


@pytest.mark.slow
def test_it_is_made_once_used_again_and_reads_as_words(tmp_path: Path, root: Path) -> None:
    first = machine_corpus(tmp_path / "cache", [root], 1_000_000)
    before = snapshot(tmp_path)
    again = machine_corpus(tmp_path / "cache", [root], 1_000_000)
    assert (first.made, again.made) == (True, False)
    assert snapshot(tmp_path) == before
    assert first.tokens == again.tokens > 100_000
    with lowtide.open_tokens(first.path / "train") as tokens:
        decoder = decoder_of(first.path)
        assert decoder is not None
        text = decoder.text(tokens[:].tolist())
        assert text.count(LOW) > 12_000
        assert text.count(LICENCE) <= 1
        assert EXPLAINED in text
        assert "Heading" not in text
        assert "include headers" not in text
    assert not list((tmp_path / "cache").glob("*.jsonl")), "what was gathered on the way is gone"


def test_documentation_comes_first_and_sources_only_where_there_is_hardly_any(root: Path) -> None:
    few = list(machine_text._texts([root], 40_000, 4.0))
    assert few
    assert all(text.startswith("The tide of day") for text in few)
    assert few == list(machine_text._texts([root], 40_000, 4.0)), "names alone decide the order"
    assert not any("import sources" in text for text in machine_text._texts([root], 200_000, 4.0))


def test_a_machine_without_documentation_learns_from_sources(tmp_path: Path) -> None:
    for number in range(200):
        (tmp_path / f"{number}.py").write_text(f"import sources\nx = {number}\n" + "y = 1\n" * 1000)
    assert sum("import sources" in text for text in machine_text._texts([tmp_path], 10**6, 4.0)) > 160


def test_this_machines_text_is_sentences() -> None:
    found = list(itertools.islice(machine_text._texts([], 300_000, 4.0), 200))
    assert sum(map(len, found)) > 20_000
    paragraphs = [paragraph for text in found for paragraph in text.splitlines()]
    assert all(prose.passages(one, set()) == [one] for one in paragraphs)
    words = " ".join(paragraphs).split()
    assert sum("_" in word or "=" in word for word in words) < 0.05 * len(words)


def test_too_little_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="expected 1000000 bytes or more of documentation and sources, got 0"):
        machine_corpus(tmp_path / "cache", [tmp_path])


def test_the_control_holds_the_whole_corpus(tmp_path: Path) -> None:
    size = 32 * 2**20
    np.zeros(size // 2, np.uint16).tofile(tmp_path / "train.bin")
    found = kept_memmap(tmp_path / "train.bin", length=256, dtype="uint16")
    assert found.corpus_bytes == size
    assert found.mapped >= 0.95 * size
    assert found.trace[0][1] < found.trace[-1][1]


LOADED = "import sys; text = open(sys.argv[1]).read()"


@pytest.mark.slow
def test_preparing_holds_a_bounded_amount_where_loading_holds_the_file(tmp_path: Path) -> None:
    size = 200 * 2**20
    with (tmp_path / "a.txt").open("wb") as file:
        line = b"the tide goes out and comes back in, and nobody has to hold it\n"
        for _ in range(size // (len(line) * 4096)):
            file.write(line * 4096)

    def peak(*command: str) -> int:
        """KiB of the largest process that ran; measured in a process between, which has no other children."""
        script = (
            "import resource, subprocess, sys\n"
            "subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)\n"
            "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
        )
        done = subprocess.run([sys.executable, "-c", script, *command], capture_output=True, text=True, check=True)
        return int(done.stdout)

    path = str(tmp_path / "a.txt")
    ours = peak(sys.executable, "-m", "lowtide", "prepare", path, "-o", str(tmp_path / "out"))
    control = peak(sys.executable, "-c", LOADED, path)
    assert ours < 192 * 1024, f"{ours} KiB"
    assert control > size // 1024
