"""Preparing inside a real cgroup: it runs, or is refused with the number that suffices; it is never killed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.cgroups import memory_cgroup_of

from lowtide.prepare.tokenizers.bpe import tokenizer_json

MIB = 1 << 20
WHAT = "prepare in a small cgroup"


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A line of JSON and a row of Parquet of 60 MB."""
    directory = tmp_path_factory.mktemp("long")
    text = "the tide goes out and comes back in, and nobody has to hold it\n" * 952_000
    (directory / "long.jsonl").write_text(json.dumps({"text": "one"}) + "\n" + json.dumps({"text": text}) + "\n")
    (directory / "short.txt").write_text(text[: 3 * MIB])
    return directory


def run_inside(limit: int, *command: str) -> subprocess.CompletedProcess[str]:
    with memory_cgroup_of(limit, WHAT) as group:
        words = ["sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh", *command]
        return subprocess.run(words, capture_output=True, text=True, check=False)


def prepared(limit: int, source: Path, output: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return run_inside(limit, sys.executable, "-m", "lowtide", "prepare", str(source), "-o", str(output), *words)


@pytest.mark.slow
def test_the_control_is_killed(inputs: Path) -> None:
    load = "import json, sys; [json.loads(line) for line in open(sys.argv[1], 'rb')]"
    done = run_inside(128 * MIB, sys.executable, "-c", load, str(inputs / "long.jsonl"))
    assert done.returncode == -9


@pytest.mark.slow
@pytest.mark.parametrize("limit", [64, 128])
def test_a_line_of_60_mb_becomes_bytes(tmp_path: Path, inputs: Path, limit: int) -> None:
    done = prepared(limit * MIB, inputs / "long.jsonl", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "shard-00000.bin").stat().st_size > 110_000_000


@pytest.mark.slow
def test_with_a_tokenizer_it_runs_at_128_and_is_refused_at_64(tmp_path: Path, inputs: Path, tokenizer: Path) -> None:
    words = ("--tokenizer", str(tokenizer))
    done = prepared(128 * MIB, inputs / "long.jsonl", tmp_path / "out", *words)
    assert done.returncode == 0, done.stderr
    small = prepared(64 * MIB, inputs / "long.jsonl", tmp_path / "small", *words)
    assert (small.returncode, "of memory beside what is in use, got" in small.stderr) == (1, True), small.stderr
    enough = int(small.stderr.rsplit("Allow ")[1].split("MiB")[0])
    again = prepared(enough * MIB, inputs / "short.txt", tmp_path / "small", *words)
    assert again.returncode == 0, again.stderr


@pytest.mark.slow
def test_a_tokenizer_is_trained_at_128_and_refused_at_64(tmp_path: Path, inputs: Path) -> None:
    done = prepared(128 * MIB, inputs / "short.txt", tmp_path / "out", "--train-bpe", "400")
    assert done.returncode == 0, done.stderr
    small = prepared(64 * MIB, inputs / "short.txt", tmp_path / "small", "--train-bpe", "400")
    assert (small.returncode, "--train-bpe 400: expected" in small.stderr) == (1, True), small.stderr


@pytest.mark.slow
def test_a_page_that_cannot_be_decoded_is_refused_by_name(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="NOT TESTED: Parquet in a small cgroup - pyarrow is not installed")
    path = tmp_path / "a.parquet"
    __import__("pyarrow.parquet").parquet.write_table(pyarrow.table({"text": ["one", "two words " * 4_000_000]}), path)
    done = prepared(128 * MIB, path, tmp_path / "out")
    assert (done.returncode, "a.parquet, a page of 38.1 MiB: expected" in done.stderr) == (1, True), done.stderr


def enough_of(done: subprocess.CompletedProcess[str]) -> int:
    """The number that a refusal names, in bytes."""
    assert done.returncode == 1, (done.returncode, done.stderr)
    return int(done.stderr.rsplit("Allow ")[1].split("MiB")[0]) * MIB


@pytest.mark.slow
@pytest.mark.parametrize("log", [25, 27])
def test_a_long_zstd_window_of_few_bytes_for_much_text_runs_or_is_refused_with_the_number_that_suffices(
    tmp_path: Path, log: int
) -> None:
    """It was killed also with that number: a few bytes of such a file stand for hundreds of MiB."""
    zstandard = pytest.importorskip("zstandard", reason="NOT TESTED: zstd in a small cgroup - it is not installed")
    text = " ".join(map(str, range(1 << 22))).encode()[: (1 << log) - 1000]
    how = zstandard.ZstdCompressionParameters.from_level(1, window_log=log, enable_ldm=True)
    packer = zstandard.ZstdCompressor(compression_params=how).compressobj()
    path = tmp_path / "long.txt.zst"
    with path.open("wb") as file:
        for _ in range(1 + (200 * MIB >> log)):
            file.write(packer.compress(text))
        file.write(packer.flush())
    limit = 128 * MIB
    if log == 27:
        limit = enough_of(prepared(limit, path, tmp_path / "out"))
    done = prepared(limit, path, tmp_path / "out")
    assert done.returncode == 0, (limit, done.returncode, done.stderr)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer of 50,000 ids."""
    rng = np.random.default_rng(1)
    words = {chr(97 + k): None for k in range(26)}  # in order
    known, merges = list(words), list[tuple[str, str]]()
    while len(merges) < 50_000 - 257:
        left, right = known[int(rng.integers(len(known)))], chr(97 + int(rng.integers(26)))
        if left + right not in words:
            words[left + right] = None
            known.append(left + right)
            merges.append((left, right))
    path = tmp_path_factory.mktemp("large") / "tokenizer.json"
    path.write_text(tokenizer_json(merges))
    return path


@pytest.mark.slow
def test_a_vocabulary_of_50000_ids_encodes_at_128_and_is_refused_at_64_with_the_number_that_suffices(
    tmp_path: Path, inputs: Path, large: Path
) -> None:
    done = prepared(128 * MIB, inputs / "short.txt", tmp_path / "out", "--tokenizer", str(large))
    assert done.returncode == 0, done.stderr
    small = prepared(64 * MIB, inputs / "short.txt", tmp_path / "small", "--tokenizer", str(large))
    again = prepared(enough_of(small), inputs / "short.txt", tmp_path / "small", "--tokenizer", str(large))
    assert again.returncode == 0, again.stderr
