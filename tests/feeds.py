"""Token files of every format with the same ids in them, and the batches they must give, in ten lines of NumPy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.formats.conftest import TokenFiles

import lowtide
from lowtide.order import Permutation, draws, key

Ids = NDArray[np.int64]
Rows = tuple[NDArray[Any], NDArray[Any]]
Opener = Callable[..., lowtide.Tokens]

STRATEGIES = ("read", "remap", "advise", "map")
ORDERS = ("shuffled", "random", "sequential")


def starts_of(
    rows: Sequence[int] | range, tokens: int, length: int, order: str = "shuffled", seed: int = 0
) -> list[int]:
    """Which token each row of the stream begins at, one row at a time, as the design defines it."""
    if order == "sequential":
        return [row * length for row in rows]
    if order == "random":
        return [int(draws(tokens - length, seed=seed, start=row, count=1, purpose="windows")[0]) for row in rows]
    windows = (tokens - length) // length
    found = []
    for epoch, position in (divmod(row, windows) for row in rows):
        window = _order(windows, seed, epoch).at([position])[0]
        found.append(key(seed, epoch, "phase") % length + int(window) * length)
    return found


@cache
def _order(windows: int, seed: int, epoch: int) -> Permutation:
    return Permutation(windows, seed=seed, epoch=epoch, purpose="windows")


def rows_of(ids: Ids, starts: Sequence[int], length: int) -> Rows:
    x = np.array([ids[start : start + length] for start in starts], np.int64).reshape(-1, length)
    y = np.array([ids[start + 1 : start + length + 1] for start in starts], np.int64).reshape(-1, length)
    return x, y


def same(got: Rows, expected: Rows, dtype: str = "int64") -> None:
    """Equal ids in arrays that are contiguous and apart."""
    for mine, theirs in zip(got, expected, strict=True):
        assert mine.dtype == dtype
        assert mine.shape == theirs.shape
        assert mine.flags.c_contiguous
        assert mine.flags.writeable
        assert np.array_equal(mine, theirs)
    assert not np.shares_memory(*got)


def numbered(count: int, most: int = 50_000) -> Ids:
    """Ids of which hardly any two neighbours follow each other anywhere else."""
    return np.random.default_rng(count).integers(0, most, count)


class Made(NamedTuple):
    source: Any
    keywords: dict[str, Any]


def _cut(ids: Ids, parts: int) -> list[Ids]:
    """Unequal parts, so that windows reach over more than one end; none is a multiple of anything."""
    edges = [0, *sorted(np.random.default_rng(1).choice(len(ids), parts - 1, replace=False).tolist()), len(ids)]
    return [ids[first:last] for first, last in pairwise(edges)]


def nanogpt(files: TokenFiles, ids: Ids) -> Made:
    return Made(files.raw("train.bin", ids), {"dtype": "uint16"})


def llmc_16(files: TokenFiles, ids: Ids) -> Made:
    return Made(files.llmc("fineweb_train_000001.bin", ids.tolist()), {})


def llmc_32(files: TokenFiles, ids: Ids) -> Made:
    return Made(files.llmc("wide_train_000001.bin", ids.tolist(), magic=20240801, version=7), {})


def megatron(files: TokenFiles, ids: Ids) -> Made:
    return Made(files.megatron("meg_text_document", [part.tolist() for part in _cut(ids, 9)], dtype="<i4", code=4), {})


def litgpt(files: TokenFiles, ids: Ids) -> Made:
    return Made(files.litgpt("packed_0.bin", ids.tolist()), {})


def datatrove(files: TokenFiles, ids: Ids) -> Made:
    return Made(files.datatrove("00000.ds", [part.tolist() for part in _cut(ids, 7)]), {})


def npy_shards(files: TokenFiles, ids: Ids) -> Made:
    """Twelve files behind a glob: shard_10 must follow shard_9, and short shards make windows span three files."""
    for number, part in enumerate(_cut(ids, 12)):
        np.save(files.directory / f"shard_{number}.npy", part.astype(np.uint16))
    return Made(str(files.directory / "shard_*.npy"), {})


def list_of_raw(files: TokenFiles, ids: Ids) -> Made:
    parts = _cut(ids, 5)
    return Made(
        [files.raw(f"part_{number}.u32", part, "<u4") for number, part in enumerate(parts)], {"dtype": "uint32"}
    )


FORMATS: dict[str, Callable[[TokenFiles, Ids], Made]] = {
    "nanogpt": nanogpt,
    "llm.c 16": llmc_16,
    "llm.c 32": llmc_32,
    "megatron": megatron,
    "lit-gpt": litgpt,
    "datatrove": datatrove,
    "npy shards": npy_shards,
    "list of raw": list_of_raw,
}


def raw_file(directory: Path, ids: Ids, name: str = "tokens.bin", dtype: str = "<u2") -> Path:
    return TokenFiles(directory).raw(name, ids, dtype)


@pytest.fixture(scope="module")
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A raw file of what the test module calls IDS."""
    return raw_file(tmp_path_factory.mktemp("tokens"), request.module.IDS)


@pytest.fixture
def tokens(path: Path) -> Iterator[lowtide.Tokens]:
    with lowtide.open_tokens(path, dtype="uint16") as opened:
        yield opened
