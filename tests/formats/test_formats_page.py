"""The page about formats: its Python runs, in order, as a reader would paste it."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

if TYPE_CHECKING:
    from tests.formats.conftest import TokenFiles

PAGE = Path(__file__).parents[2] / "docs" / "formats.md"


def test_every_python_block_of_the_page_runs(
    token_files: TokenFiles, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="NOT TESTED: the page about formats, because pyarrow is missing")
    parquet = pytest.importorskip("pyarrow.parquet")
    monkeypatch.chdir(token_files.directory)
    monkeypatch.setenv("XDG_CACHE_HOME", os.fspath(token_files.directory / "cache"))
    for name in ("shards", "ids"):
        Path(name).mkdir()
    rows = np.arange(20 * 162, dtype="f4").reshape(20, 162)
    np.save("features.npy", rows)
    rows.tofile("x.f32")
    np.savez("arrays.npz", X=rows, y=np.arange(20))
    token_files.raw("train.bin", list(range(100)))
    for k in range(3):
        token_files.raw(f"shards/{k}.bin", [k] * 10)
    token_files.datatrove("web.ds", [[1, 2, 3], [4, 5]])
    parquet.write_table(pyarrow.table({"input_ids": [[1, 2], [3]]}), "ids/0.parquet")
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 5
    scope: dict[str, Any] = {}
    for number, block in enumerate(blocks):
        exec(compile(block, f"formats.md, block {number}", "exec"), scope)
    said = capsys.readouterr().out
    assert "X float32 (20, 162) in place" in said
    assert "2 documents, the last one ends at token 5" in said
    assert np.array_equal(scope["a"][:], rows[1:11])


def test_the_page_names_the_kinds_that_are_refused() -> None:
    text = PAGE.read_text().lower()
    for word in ("gzip", "zstd", "bzip2", "xz", "lz4", "tar", "zip", "gguf", "csv", "json", "litdata", "mds", "zarr"):
        assert word in text
