"""Files that hold several arrays by name: .safetensors, .npz and HDF5.

One idea: each of the three formats answers two questions - what are your members, and where does this one lie - and
everything else, from the choice of the only member to the error that lists the others, is worded once. Costs what the
format's own table costs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np

from lowtide.errors import FormatError
from lowtide.formats import hdf5, npz, safetensors
from lowtide.formats.header import HeaderFile
from lowtide.formats.layout import Layout
from lowtide.formats.members import ArrayMember, missing_member, only_member


class Container(Protocol):
    """A module that knows one such format."""

    WHAT: str

    def read(self, file: HeaderFile, name: str) -> Layout | None: ...
    def members(self, file: HeaderFile) -> Iterator[ArrayMember]: ...


def container_of(file: HeaderFile, head: bytes, *, stated: np.dtype[Any] | None) -> Container | None:
    """The format of the file where it holds arrays by name; single bytes were asked for: only by its suffix."""
    name = file.path.lower()
    if name.endswith(".safetensors"):
        return safetensors
    as_bytes = stated is not None and stated.itemsize == 1
    if name.endswith(".npz") or (head.startswith(npz.MAGICS) and not as_bytes):
        return npz
    if name.endswith(hdf5.SUFFIXES[:2]) or not as_bytes:
        return hdf5 if hdf5.looks_like(file, head) else None
    return None


def read_member(file: HeaderFile, container: Container, tensor: str | None, *, tokens: bool) -> Layout:
    """The layout of the member of that name; without a name, of the only one that can be meant."""
    name = tensor
    if name is None:
        name = only_member(file.path, container.WHAT, container.members(file), tokens=tokens)
    layout = container.read(file, name)
    if layout is None:
        raise missing_member(file.path, container.WHAT, name, container.members(file))
    return layout


def no_members(where: str, tensor: str) -> FormatError:
    """The error for ``tensor=`` and a file that holds one array."""
    return FormatError(
        f"{where}: expected a .safetensors, .npz or HDF5 file for tensor={tensor!r}, got a file of one array. "
        "Leave tensor= out."
    )


def members_of(path: str) -> tuple[ArrayMember, ...]:
    """Every array of a .safetensors, .npz or HDF5 file; none for a file of another kind."""
    with HeaderFile(path) as file:
        head = file.read(0, 16)
        container = container_of(file, head, stated=None)
        if container is None and safetensors.looks_like(head[:10], file.size):
            container = safetensors
        return () if container is None else tuple(container.members(file))
