"""A tiny corpus and tiny settings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.train.running import TINY, write_tokens

from lowtide.train import Settings


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tests run two at a time on two cores; torch's own threads would only get in each other's way."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return write_tokens(tmp_path / "corpus.bin")


@pytest.fixture
def tiny(tmp_path: Path, corpus: Path) -> Callable[..., Settings]:
    """Settings for a run of a second, with some changed."""

    def make(**changed: Any) -> Settings:
        values = {**TINY, "data": str(corpus), "val_fraction": 0.1, "out_dir": str(tmp_path / "out"), **changed}
        return Settings(**values)

    return make
