"""Which format a file is in, by its bytes and the files beside it, from the strongest evidence to the weakest.

Files that hold arrays by name (.safetensors, .npz, HDF5) are known by suffix or magic; then come the magics of the
others, then files beside it (Megatron's index, datatrove's sidecars), and last ten bytes that may begin a safetensors
header - only if no dtype was stated, because integers can start the same way. A file that matches
nothing has no header. Costs one read of 1 KiB, and what the format's own table costs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np

from lowtide.errors import FormatError
from lowtide.formats.files import hdf5, npy, npz, safetensors
from lowtide.formats.files.members import ArrayMember, missing_member, only_member
from lowtide.formats.header import HeaderFile, is_file, lies_beside
from lowtide.formats.layout import Layout
from lowtide.formats.tokens import datatrove, litgpt, llmc, megatron


class Container(Protocol):
    """A module that reads one format with named arrays."""

    WHAT: str

    def read(self, file: HeaderFile, name: str) -> Layout | None: ...
    def members(self, file: HeaderFile) -> Iterator[ArrayMember]: ...


def recognised(
    file: HeaderFile,
    *,
    stated: np.dtype[Any] | None,
    tensor: str | None,
    beside: bool,
    tokens: bool,
    inside: bool = False,
) -> Layout | None:
    """The layout that the file - or, if ``beside``, an index next to it - gives; ``None`` if it has no header.

    ``stated``: the caller's dtype. ``tokens``: a run of integers is wanted, which decides ambiguous cases.
    ``inside``: the caller names a place inside the file, so archives are not searched for members.
    """
    head = file.read(0, llmc.HEADER)
    container = _container(file, head, stated=stated)
    if container is not None and not (inside and container is not safetensors):
        return _read_member(file, container, tensor, tokens=tokens)
    layout = _by_header(file, head, beside=beside, tokens=tokens)
    if layout is None and (stated is None or tensor is not None) and safetensors.looks_like(head[:10], file.size):
        return _read_member(file, safetensors, tensor, tokens=tokens)
    if tensor is not None:
        raise FormatError(
            f"{file.path}: expected a .safetensors, .npz or HDF5 file for tensor={tensor!r}, got a file of one array. "
            "Leave tensor= out."
        )
    return layout


def members_of(path: str) -> tuple[ArrayMember, ...]:
    """Every array of a .safetensors, .npz or HDF5 file; none for a file of another kind."""
    with HeaderFile(path) as file:
        head = file.read(0, 16)
        container = _container(file, head, stated=None)
        if container is None and safetensors.looks_like(head[:10], file.size):
            container = safetensors
        return () if container is None else tuple(container.members(file))


def _container(file: HeaderFile, head: bytes, *, stated: np.dtype[Any] | None) -> Container | None:
    """The format of a file with named arrays; if single bytes were asked for, only its suffix counts."""
    name = file.path.lower()
    if name.endswith(".safetensors"):
        return safetensors
    as_bytes = stated is not None and stated.itemsize == 1
    if name.endswith(".npz") or (head.startswith(npz.MAGICS) and not as_bytes):
        return npz
    if name.endswith(hdf5.SUFFIXES[:2]) or not as_bytes:
        return hdf5 if hdf5.looks_like(file, head) else None
    return None


def _read_member(file: HeaderFile, container: Container, tensor: str | None, *, tokens: bool) -> Layout:
    """The layout of the member of that name; without a name, of the only possible one."""
    name = tensor
    if name is None:
        name = only_member(file.path, container.WHAT, container.members(file), tokens=tokens)
    layout = container.read(file, name)
    if layout is None:
        raise missing_member(file.path, container.WHAT, name, container.members(file))
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
    if not path.endswith(".bin") or not lies_beside(index):
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
