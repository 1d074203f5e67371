"""Token files as their own projects' writers leave them. What is not installed is skipped, by name.

The writers run in processes of their own: some leave threads behind.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from lowtide.errors import FormatError
from lowtide.formats import Layout, document_ends, token_layout

ReadBack = Callable[[Layout], npt.NDArray[Any]]

DATATROVE = """
from datatrove.pipeline.tokens.tokenizer import TokenizedFile
for k, documents in enumerate([[[1, 2, 3], [4]], [], [[5], [6, 7]]]):
    file = TokenizedFile(
        ".", f"{k:05d}_unshuffled.ds", tokenizer_name_or_path="gpt2", save_final_metadata=True, token_size=SIZE
    )
    for document in documents:
        file.write(document, None)
    file.close()
"""
LITDATA = """
import torch
from litdata import TokensLoader
from litdata.streaming.writer import BinaryWriter
out = BinaryWriter(".", chunk_bytes="8KB", item_loader=TokensLoader(block_size=16))
for k in range(60):
    out.add_item(k, torch.arange(k * 100, k * 100 + 100, dtype=torch.int32))
out.done()
out.merge()
"""


def written(directory: Path, package: str, script: str) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"NOT TESTED: what {package} itself writes, because it is not installed")
    subprocess.run([sys.executable, "-c", script], cwd=directory, check=True, capture_output=True)


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 4])
def test_datatrove_s_files_open_and_its_empty_ones_are_left_out(tmp_path: Path, read_back: ReadBack, size: int) -> None:
    written(tmp_path, "datatrove", DATATROVE.replace("SIZE", str(size)))
    layout = token_layout(tmp_path)
    assert (layout.format, layout.dtype.itemsize) == ("datatrove", size)
    assert read_back(layout).tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert [int(end) for block in document_ends(layout) or () for end in block] == [3, 4, 5, 7]
    assert "1 empty file left out: 00001_unshuffled.ds" in layout.notes


@pytest.mark.slow
def test_litdata_s_chunks_are_named_and_the_way_out_gives_their_ids(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path, "litdata", LITDATA)
    chunks = sorted(tmp_path.glob("chunk-*.bin"))
    for source in (tmp_path, chunks[0], str(tmp_path / "chunk-*.bin")):
        with pytest.raises(FormatError, match="what litData writes") as caught:
            token_layout(source, dtype="uint16")
    line = re.search(r"np\.fromfile\(.*tofile\('ids\.bin'\)", str(caught.value))
    assert line is not None
    monkeypatch.chdir(tmp_path)
    exec(line[0], {"np": np, "chunk": str(chunks[0])})
    assert np.fromfile(tmp_path / "ids.bin", "i4").tolist() == list(range(2000))
