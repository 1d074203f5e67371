"""Files of every format, written here from the formats' own descriptions, and a reader of layouts to compare with."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pytest

from lowtide.formats import Layout

Array = npt.NDArray[Any]


def _read_back(layout: Layout) -> Array:
    """The array a layout describes, read with nothing but open, seek and read."""
    parts = []
    for extent, rows in zip(layout.extents, layout.rows, strict=True):
        assert Path(extent.path).stat().st_size == extent.size
        with Path(extent.path).open("rb") as file:
            file.seek(extent.offset)
            data = file.read(extent.length)
        order: Literal["F", "C"] = "F" if layout.fortran else "C"
        parts.append(np.ndarray((rows, *layout.shape[1:]), layout.dtype, data, order=order))
    whole = np.concatenate(parts) if len(parts) > 1 else parts[0]
    assert whole.shape == layout.shape
    return whole


@pytest.fixture(scope="session")
def read_back() -> Callable[[Layout], Array]:
    return _read_back


class TokenFiles:
    """Writes token files into one directory, byte by byte as their formats say."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def raw(self, name: str, tokens: Sequence[int] | Array, dtype: str = "<u2") -> Path:
        path = self.directory / name
        path.write_bytes(np.asarray(tokens).astype(dtype).tobytes())
        return path

    def llmc(
        self, name: str, tokens: Sequence[int], *, magic: int = 20240520, version: int = 1, count: int | None = None
    ) -> Path:
        path = self.directory / name
        header = struct.pack("<3i", magic, version, len(tokens) if count is None else count).ljust(1024, b"\0")
        path.write_bytes(header + np.asarray(tokens).astype("<u4" if magic == 20240801 else "<u2").tobytes())
        return path

    def litgpt(self, name: str, tokens: Sequence[int], *, dtype: str = "<u2", code: int = 8) -> Path:
        path = self.directory / name
        header = b"LITPKDS" + struct.pack("<QBQ", 1, code, len(tokens))
        path.write_bytes(header + np.asarray(tokens).astype(dtype).tobytes())
        return path

    def megatron(
        self,
        prefix: str,
        sequences: Sequence[Sequence[int]],
        *,
        dtype: str = "<u2",
        code: int = 8,
        boundaries: Sequence[int] | None = None,
        modes: bool = False,
    ) -> Path:
        """Returns the ``.bin``; without ``boundaries`` every sequence is a document."""
        lengths = [len(sequence) for sequence in sequences]
        pointers = np.concatenate([[0], np.cumsum(lengths)[:-1]]) * np.dtype(dtype).itemsize
        ends = list(range(len(sequences) + 1)) if boundaries is None else list(boundaries)
        index = b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, code, len(sequences), len(ends))
        index += np.asarray(lengths, "<i4").tobytes() + pointers.astype("<i8").tobytes()
        index += np.asarray(ends, "<i8").tobytes() + (b"\0" * len(sequences) if modes else b"")
        (self.directory / f"{prefix}.idx").write_bytes(index)
        path = self.directory / f"{prefix}.bin"
        path.write_bytes(b"".join(np.asarray(s, np.int64).astype(dtype).tobytes() for s in sequences))
        return path

    def datatrove(
        self, name: str, documents: Sequence[Sequence[int]], *, size: int = 2, metadata: bool = True, index: bool = True
    ) -> Path:
        path = self.directory / name
        tokens = [token for document in documents for token in document]
        path.write_bytes(np.asarray(tokens).astype(f"<u{size}").tobytes())
        if index:
            ends = np.cumsum([len(document) for document in documents])
            Path(f"{path}.index").write_bytes(ends.astype("<u8").tobytes())
        if metadata:
            Path(f"{path}.metadata").write_text(f"gpt2|{size}\n{len(tokens)}\n{len(tokens)} T")
        return path

    def manifest(self, shards: Sequence[tuple[str, int]], dtype: str = "uint16", **more: object) -> Path:
        entries = [{"file": name, "tokens": tokens} for name, tokens in shards]
        path = self.directory / "manifest.json"
        path.write_text(json.dumps({"lowtide": 1, "dtype": dtype, "shards": entries, **more}))
        return path


@pytest.fixture
def token_files(tmp_path: Path) -> TokenFiles:
    return TokenFiles(tmp_path)
