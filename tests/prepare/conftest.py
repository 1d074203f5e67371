"""What the tests of ``prepare`` share: documents, a small tokenizer, and a look at a finished corpus."""

from __future__ import annotations

import gzip
import json
import random
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lowtide
from lowtide.prepare.tokenizers.bpe import tokenizer_json

EOT = 256


def make_documents(count: int, seed: int = 0, longest: int = 400) -> list[str]:
    """Text with words, numbers, spaces, other alphabets and the spelling of a special token."""
    draw = random.Random(seed)
    words = ["def", "return", "the", "tide", "naïve", "日本語", "🙂", "<|endoftext|>", "x1", "  ", "\t", "3.14", "end."]
    return [" ".join(draw.choice(words) for _ in range(draw.randrange(1, longest))) + f" {k}" for k in range(count)]


def snapshot(directory: Path) -> dict[str, bytes]:
    """Every file below a directory."""
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def documents_of(corpus: Path) -> list[list[int]]:
    """The documents of a corpus as lists of ids, the end of text included, through the public reader."""
    with lowtide.open_tokens(corpus) as tokens:
        blocks = tokens.documents()
        assert blocks is not None
        ends = np.concatenate(list(blocks)).tolist()
        ids = np.asarray(tokens[:]).tolist()
    return [ids[begin:end] for begin, end in zip([0, *ends[:-1]], ends, strict=True)]


def as_bytes(texts: Sequence[str]) -> list[list[int]]:
    """What the built-in tokenizer must give."""
    return [[*text.encode(), EOT] for text in texts]


def write_jsonl(path: Path, texts: Sequence[str]) -> Path:
    data = "".join(json.dumps({"text": text, "id": k}) + "\n" for k, text in enumerate(texts)).encode()
    path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)
    return path


def run_cli(*words: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """``lowtide`` in a process of its own."""
    command = [sys.executable, "-m", "lowtide", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A byte-level BPE of 262 ids, written by hand: it is the same on every machine and with every library."""
    merges = [["t", "h"], ["th", "e"], ["Ġ", "the"], ["e", "n"], ["Ġ", "d"]]
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    path.write_text(tokenizer_json(merges), encoding="utf-8")
    return path


@pytest.fixture
def encoded(tokenizer: Path) -> Callable[[Sequence[str]], list[list[int]]]:
    """What ``tokenizers`` itself gives for documents, with an end of text after each."""
    import tokenizers

    library = tokenizers.Tokenizer.from_file(str(tokenizer))
    library.encode_special_tokens = True
    return lambda texts: [[*library.encode(text, add_special_tokens=False).ids, 0] for text in texts]
