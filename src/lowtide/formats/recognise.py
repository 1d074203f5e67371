"""Which format a file is in, by its bytes and by what lies beside it.

One idea: the order is fixed and goes from the strongest evidence to the weakest.

1. The file's own first bytes: numpy's magic, Megatron's index, lit-gpt's magic, llm.c's header with its version.
2. What lies beside it: Megatron's index with that magic, datatrove's metadata or index.
3. Ten bytes that may begin a safetensors header - only where no dtype was stated: integers can start the same way.

A file that matches nothing has no header. Files that hold arrays by name (``containers.py``: their suffix, a zip's or
HDF5's magic) come before all of this. Costs one read of 1 KiB.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lowtide.errors import FormatError
from lowtide.formats import datatrove, litgpt, llmc, megatron, npy, safetensors
from lowtide.formats.containers import container_of, no_members, read_member
from lowtide.formats.header import HeaderFile, is_file
from lowtide.formats.layout import Layout


def recognised(
    file: HeaderFile,
    *,
    stated: np.dtype[Any] | None,
    tensor: str | None,
    beside: bool,
    tokens: bool,
    inside: bool = False,
) -> Layout | None:
    """The layout that the file - or, if ``beside``, an index next to it - gives; ``None`` where it has no header.

    ``stated``: the caller's dtype. ``tokens``: a run of integers is wanted, which settles what is left open.
    ``inside``: the caller names a place inside the file, so archives are not asked for their members.
    """
    head = file.read(0, llmc.HEADER)
    container = container_of(file, head, stated=stated)
    if container is not None and not (inside and container is not safetensors):
        return read_member(file, container, tensor, tokens=tokens)
    layout = _by_header(file, head, beside=beside, tokens=tokens)
    if layout is None and (stated is None or tensor is not None) and safetensors.looks_like(head[:10], file.size):
        return read_member(file, safetensors, tensor, tokens=tokens)
    if tensor is not None:
        raise no_members(file.path, tensor)
    return layout


def _by_header(file: HeaderFile, head: bytes, *, beside: bool, tokens: bool) -> Layout | None:
    if head.startswith(npy.MAGIC):
        return npy.read(file)
    if head.startswith(megatron.MAGIC):
        return _megatron_by_index(file, tokens=tokens)
    if head.startswith(litgpt.MAGIC):
        return litgpt.read(file)
    if llmc.looks_like(head):
        return llmc.read(file)
    if beside and _has_megatron_index(file.path):
        with HeaderFile(_other(file.path, ".idx")) as index:
            return megatron.read(index, file, tokens=tokens)
    if beside and datatrove.has_sidecars(file.path):
        return datatrove.read(file)
    return None


def _has_megatron_index(path: str) -> bool:
    index = _other(path, ".idx")
    if not path.endswith(".bin") or not is_file(index):
        return False
    with HeaderFile(index) as file:
        return file.read(0, len(megatron.MAGIC)) == megatron.MAGIC


def _megatron_by_index(index: HeaderFile, *, tokens: bool) -> Layout:
    data = _other(index.path, ".bin")
    if data == index.path or not is_file(data):
        raise FormatError(
            f"{index.path}: expected the tokens of this Megatron index in {data}, got no such file. "
            "Put the .bin and the .idx side by side."
        )
    with HeaderFile(data) as file:
        return megatron.read(index, file, tokens=tokens)


def _other(path: str, suffix: str) -> str:
    return (path[:-4] if path.endswith((".bin", ".idx")) else path) + suffix
