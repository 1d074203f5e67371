"""Token files as their own projects' writers leave them. What is not installed is skipped, by name."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from lowtide.errors import FormatError
from lowtide.formats import Layout, document_ends, token_layout

ReadBack = Callable[[Layout], npt.NDArray[Any]]


@pytest.mark.parametrize("size", [2, 4])
def test_datatrove_s_files_open_and_its_empty_ones_are_left_out(tmp_path: Path, read_back: ReadBack, size: int) -> None:
    tokenizer = pytest.importorskip(
        "datatrove.pipeline.tokens.tokenizer", reason="NOT TESTED: datatrove's own writer, because it is not installed"
    )
    shards: list[list[list[int]]] = [[[1, 2, 3], [4]], [], [[5], [6, 7]]]
    for k, documents in enumerate(shards):
        file = tokenizer.TokenizedFile(
            str(tmp_path),
            f"{k:05d}_unshuffled.ds",
            tokenizer_name_or_path="gpt2",
            save_final_metadata=True,
            token_size=size,
        )
        for document in documents:
            file.write(document, None)
        file.close()
    layout = token_layout(tmp_path)
    assert (layout.format, layout.dtype.itemsize) == ("datatrove", size)
    assert read_back(layout).tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert [int(end) for block in document_ends(layout) or () for end in block] == [3, 4, 5, 7]
    assert "1 empty file left out: 00001_unshuffled.ds" in layout.notes


def test_litdata_s_chunks_are_named_and_the_way_out_gives_their_ids(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = pytest.importorskip(
        "litdata.streaming.writer", reason="NOT TESTED: litData's own writer, because litdata is not installed"
    )
    torch = pytest.importorskip("torch", reason="NOT TESTED: litData's own writer, because torch is not installed")
    loader = pytest.importorskip("litdata").TokensLoader(block_size=16)
    out = writer.BinaryWriter(str(tmp_path), chunk_bytes="8KB", item_loader=loader)
    for k in range(60):
        out.add_item(k, torch.arange(k * 100, k * 100 + 100, dtype=torch.int32))
    out.done()
    out.merge()
    chunks = sorted(tmp_path.glob("chunk-*.bin"))
    for source in (tmp_path, chunks[0], str(tmp_path / "chunk-*.bin")):
        with pytest.raises(FormatError, match="what litData writes") as caught:
            token_layout(source, dtype="uint16")
    line = re.search(r"np\.fromfile\(.*tofile\('ids\.bin'\)", str(caught.value))
    assert line is not None
    monkeypatch.chdir(tmp_path)
    exec(line[0], {"np": np, "chunk": str(chunks[0])})
    assert np.fromfile(tmp_path / "ids.bin", "i4").tolist() == list(range(2000))
