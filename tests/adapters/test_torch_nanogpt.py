"""``nanogpt``: the batches of nanoGPT's own loop, bit for bit, drawn from the same generator at the same moments."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.feeds import numbered, raw_file

import lowtide

torch = pytest.importorskip("torch", reason="NOT TESTED: torch is not installed, so nanogpt() never ran")
from lowtide.torch import nanogpt  # noqa: E402

BLOCK, BATCH = 64, 12


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    raw_file(tmp_path, numbered(50_000, 65_536), "train.bin")
    raw_file(tmp_path, numbered(700, 65_536), "val.bin")
    (tmp_path / "meta.pkl").write_bytes(b"not read")
    return tmp_path


def loop_of_nanogpt(data_dir: Path, block_size: int = BLOCK, batch_size: int = BATCH) -> Callable[[str], Any]:
    """What nanoGPT's train.py does for every batch, told in our own words."""

    def get_batch(split: str) -> Any:
        data = np.memmap(data_dir / f"{split}.bin", dtype=np.uint16, mode="r")
        starts = torch.randint(len(data) - block_size, (batch_size,))
        x = torch.stack([torch.from_numpy(data[i : i + block_size].astype(np.int64)) for i in starts])
        y = torch.stack([torch.from_numpy(data[i + 1 : i + 1 + block_size].astype(np.int64)) for i in starts])
        return x, y

    return get_batch


def test_the_batches_are_nanogpts_bit_for_bit_and_the_generator_ends_where_its_would(data_dir: Path) -> None:
    mine = nanogpt(data_dir, block_size=BLOCK, batch_size=BATCH)
    theirs = loop_of_nanogpt(data_dir)
    splits = ["train", "train", "val", "train", "val", "val"] * 50
    torch.manual_seed(1337)
    expected = []
    for split in splits:
        expected.append(theirs(split))
        torch.rand(3)  # a model draws too: dropout, sampling
    end = torch.get_rng_state()
    torch.manual_seed(1337)
    for split, (x, y) in zip(splits, expected, strict=True):
        got = mine(split)
        torch.rand(3)
        assert got[0].dtype == torch.int64
        assert torch.equal(got[0], x)
        assert torch.equal(got[1], y)
        assert got[0].is_contiguous()
    assert torch.equal(torch.get_rng_state(), end)


def test_nothing_is_drawn_before_a_batch_is_asked_for(data_dir: Path) -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    get_batch = nanogpt(data_dir, block_size=BLOCK, batch_size=BATCH)
    assert torch.equal(torch.get_rng_state(), before)
    get_batch("train")
    assert not torch.equal(torch.get_rng_state(), before)


def test_nanogpts_own_holding_pattern_fits_the_budget_it_gets(data_dir: Path) -> None:
    """train.py holds a prefetched batch while it estimates the loss on others, of both splits."""
    get_batch = nanogpt(
        data_dir, block_size=BLOCK, batch_size=60_000
    )  # 29 MiB each for x and y: more than 64 MiB in all
    torch.manual_seed(2)
    ahead = get_batch("train")
    for split in ("train", "val", "train"):
        x, y = get_batch(split)
    torch.manual_seed(2)
    starts = torch.randint(50_000 - BLOCK, (60_000,)).numpy()
    expected = np.fromfile(data_dir / "train.bin", np.uint16)[starts[:, None] + np.arange(BLOCK)]
    assert np.array_equal(ahead[0].numpy(), expected)
    assert torch.equal(x[:, 1:], y[:, :-1])


def test_held_batches_never_change(data_dir: Path) -> None:
    get_batch = nanogpt(data_dir, block_size=BLOCK, batch_size=BATCH)
    held = [get_batch("train") for _ in range(10)]
    copies = [(x.clone(), y.clone()) for x, y in held]
    for _ in range(100):
        get_batch("train")
    assert all(torch.equal(x, a) and torch.equal(y, b) for (x, y), (a, b) in zip(held, copies, strict=True))


@pytest.mark.parametrize("count", [1, 64])
def test_a_file_of_at_most_one_block_is_refused_with_the_largest_that_fits(tmp_path: Path, count: int) -> None:
    raw_file(tmp_path, numbered(count), "train.bin")
    words = (
        rf"train\.bin: expected more than block_size=64 tokens, got {count}. Use block_size={max(1, count - 1)} or less"
    )
    with pytest.raises(lowtide.FormatError, match=words):
        nanogpt(tmp_path, block_size=BLOCK, batch_size=BATCH)("train")


def test_one_token_more_than_a_block_is_enough(tmp_path: Path) -> None:
    ids = numbered(BLOCK + 1)
    raw_file(tmp_path, ids, "train.bin")
    x, y = nanogpt(tmp_path, block_size=BLOCK, batch_size=2)("train")
    assert x.tolist() == [ids[:-1].tolist()] * 2
    assert y.tolist() == [ids[1:].tolist()] * 2


def test_a_missing_split_is_a_missing_file(data_dir: Path) -> None:
    (data_dir / "val.bin").unlink()
    get_batch = nanogpt(data_dir, block_size=BLOCK, batch_size=BATCH)
    get_batch("train")
    with pytest.raises(FileNotFoundError, match=r"val\.bin"):
        get_batch("val")


def test_a_batch_beyond_a_stated_budget_is_refused_by_its_number(data_dir: Path) -> None:
    get_batch = nanogpt(data_dir, block_size=BLOCK, batch_size=BATCH, budget="16KiB")
    with pytest.raises(lowtide.BudgetError, match=r"batches of 12 x 64.*got 16.0 KiB. Open with budget="):
        get_batch("train")


@pytest.mark.parametrize("name", ["block_size", "batch_size"])
def test_a_batch_of_nothing_is_refused_by_name(tmp_path: Path, name: str) -> None:
    sizes: Any = {"block_size": 8, "batch_size": 4, name: 0}
    with pytest.raises(ValueError, match=f"{name}: expected 1 or more, got 0"):
        nanogpt(tmp_path, **sizes)


def test_an_empty_name_is_not_the_current_directory(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(data_dir)
    with pytest.raises(ValueError, match="data_dir: expected a directory, got empty text"):
        nanogpt("", block_size=8, batch_size=4)
