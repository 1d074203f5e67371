"""datatrove's tokenised files: ``X.ds`` with ``X.ds.index`` and ``X.ds.metadata`` beside it.

    X.ds: ids, uint16 or uint32 | X.ds.index: uint64[documents], where each ends, in tokens |
    X.ds.metadata: "tokenizer|token_size", token count, a size in words, one per line

The file itself has no header, so its dtype is what the metadata says or, without it, what the file's size and the last
document's end give. Costs two small reads. If neither is there, the dtype must be stated.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from lowtide.errors import FormatError
from lowtide.formats.header import HeaderFile, lies_beside, refuse_empty
from lowtide.formats.layout import DocumentIndex, Layout, clip, one_extent

_DTYPES = {2: "<u2", 4: "<u4"}
_MOST_METADATA = 65_536
_MOST_DIGITS = 20


def has_sidecars(path: str) -> bool:
    """Whether a file beside a ``.ds`` file tells its dtype."""
    return path.endswith(".ds") and (lies_beside(f"{path}.metadata") or lies_beside(f"{path}.index"))


def read(file: HeaderFile) -> Layout:
    """The layout of a ``.ds`` file, from the files beside it."""
    refuse_empty(file)
    documents, tokens = _index(f"{file.path}.index") if lies_beside(f"{file.path}.index") else (None, None)
    if lies_beside(f"{file.path}.metadata"):
        size, count = _metadata(f"{file.path}.metadata")
        tokens = count if tokens is None else tokens
    else:
        size = file.size // tokens if tokens else 0
    if size not in _DTYPES or (tokens is not None and tokens * size != file.size) or file.size % size:
        told = f"{tokens} tokens" if tokens is not None else "tokens"
        raise FormatError(
            f"{file.path}: expected {told} of 2 or 4 bytes as the files beside it say, got {file.size} bytes and a "
            f"token size of {size}. Copy the file and its .index and .metadata again."
        )
    layout = one_extent("datatrove", np.dtype(_DTYPES[size]), (file.size // size,), file.extent(0, file.size))
    notes = ("a loss mask (.ds.loss) lies beside it and was not read",) if lies_beside(f"{file.path}.loss") else ()
    return replace(layout, documents=(documents,) if documents else None, notes=notes)


def _index(path: str) -> tuple[DocumentIndex | None, int | None]:
    """Where the document ends are, and the last of them."""
    with HeaderFile(path) as index:
        if index.size == 0 or index.size % 8:
            raise FormatError(
                f"{path}: expected whole 8-byte document ends, got {index.size} bytes. Copy it again, or remove it."
            )
        last = int.from_bytes(index.read(index.size - 8, 8), "little")
        count = index.size // 8
        documents = DocumentIndex("datatrove", index.path, index.size, offset=0, count=count, made=index.made)
        return documents, last


def _metadata(path: str) -> tuple[int, int | None]:
    """Bytes per token, and the number of tokens if the second line gives it."""
    with HeaderFile(path) as metadata:
        line, _, rest = metadata.read(0, _MOST_METADATA).partition(b"\n")
    size, count = line.strip().rpartition(b"|")[2], rest.partition(b"\n")[0].strip()
    if size not in (b"2", b"4"):
        raise FormatError(
            f"{path}: expected 'tokenizer|2' or 'tokenizer|4' in its first line, got {clip(line)}. "
            "Copy it again, or remove it and state dtype=."
        )
    return int(size), int(count) if count.isdigit() and len(count) < _MOST_DIGITS else None
