"""JAX takes batches by DLPack: without a copy, and the buffer is held as long as a JAX array needs it."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.feeds import numbered, raw_file

import lowtide

jnp: Any = pytest.importorskip("jax.numpy", reason="NOT TESTED: jax is not installed here; `make trainers` has it")


def test_a_batch_becomes_a_jax_array_without_a_copy_and_is_held_by_it(tmp_path: Path) -> None:
    with lowtide.open_tokens(raw_file(tmp_path, numbered(20_000)), dtype="uint16") as tokens:
        feed = tokens.batches(8, length=64, seed=1, dtype="int32")
        x, y = next(feed)
        there = jnp.from_dlpack(x)
        assert there.dtype == jnp.int32
        assert there.unsafe_buffer_pointer() == x.ctypes.data
        expected = np.array(x)
        del x, y
        for _ in range(5):
            next(feed)
        assert np.array_equal(there, expected)
        back = np.from_dlpack(there)
        assert np.array_equal(back, expected)
        del there, back
        gc.collect()
        assert tokens.store.pool.lent == 0


def test_jax_arrays_serve_as_row_numbers_and_as_rows_to_write(tmp_path: Path) -> None:
    rows = jnp.arange(60, dtype=jnp.float32).reshape(20, 3)
    with lowtide.create(tmp_path / "x.npy", dtype="float32", shape=(-1, 3)) as out:
        out.append(rows)
    with lowtide.open(tmp_path / "x.npy") as array:
        wanted = jnp.array([7, 3, 1])
        assert np.array_equal(array[wanted], rows[wanted])
