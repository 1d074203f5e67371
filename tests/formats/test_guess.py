"""A dtype that does not fit the tokens is noticed, and one that fits is left alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from lowtide.formats import dtype_smell, layout_of, token_layout

Draw = Callable[[np.random.Generator], npt.NDArray[Any]]
# Zipf: as text has it, a few ids are very common; the modulus keeps them inside the vocabulary.
TOKENS: dict[str, Draw] = {
    "gpt-2": lambda rng: rng.integers(0, 50_257, 100_000),
    "llama-3": lambda rng: rng.integers(0, 128_256, 100_000),
    "characters": lambda rng: rng.integers(0, 65, 100_000),
    "zipf": lambda rng: (rng.zipf(1.3, 100_000) + 10) % 50_257,
}


def smell(path: Path, tokens: npt.NDArray[Any], written: str, read: str) -> str | None:
    tokens.astype(written).tofile(path)
    return dtype_smell(token_layout(path, dtype=read))


@pytest.mark.parametrize("kind", [kind for kind in TOKENS if kind != "llama-3"])
def test_uint16_tokens_read_as_uint32_smell(tmp_path: Path, kind: str) -> None:
    tokens = TOKENS[kind](np.random.default_rng(5))
    for read in ("u4", "i4"):
        assert "looks like uint16" in str(smell(tmp_path / "x", tokens, "<u2", read))


@pytest.mark.parametrize("kind", TOKENS)
def test_uint32_tokens_read_as_uint16_smell(tmp_path: Path, kind: str) -> None:
    tokens = TOKENS[kind](np.random.default_rng(5))
    assert "looks like uint32" in str(smell(tmp_path / "x", tokens, "<u4", "u2"))


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [(k, d) for k in TOKENS for d in ("u1", "u2", "u4", "i4", "i8") if not (k == "llama-3" and d in ("u1", "u2"))],
)
def test_the_right_dtype_does_not_smell(tmp_path: Path, kind: str, dtype: str) -> None:
    assert smell(tmp_path / "x", TOKENS[kind](np.random.default_rng(5)), dtype, dtype) is None


def test_dates_zeros_and_few_tokens_do_not_smell(tmp_path: Path) -> None:
    dates = 20_240_101 + np.arange(100_000) % 28
    assert smell(tmp_path / "x", dates, "<u4", "u4") is None
    assert smell(tmp_path / "x", np.zeros(1000), "<u4", "u2") is None
    assert smell(tmp_path / "x", np.arange(8), "<u4", "u2") is None
    assert smell(tmp_path / "x", np.arange(1), "<u2", "u2") is None


def test_shards_are_all_sampled(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    for k in range(3):
        rng.integers(0, 50_257, 10_001).astype("<u4").tofile(tmp_path / f"{k}.bin")
    assert "uint32" in str(dtype_smell(token_layout(tmp_path, dtype="u2")))


def test_arrays_of_other_kinds_are_not_judged(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((3, 4), "u2"))
    np.save(tmp_path / "b.npy", np.zeros(4, "f4"))
    np.save(tmp_path / "c.npy", np.zeros(0, "u2"))
    for name in ("a", "b", "c"):
        assert dtype_smell(layout_of(tmp_path / f"{name}.npy")) is None
