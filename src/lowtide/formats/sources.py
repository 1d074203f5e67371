"""What a caller may name as data: a path, a memmap, a list of them, a glob.

Every way of naming files becomes one list in a stated order. Globs sort as people count (shard_2 before shard_10);
lists keep the caller's order. Addresses of object stores are taken as they are, and patterns in them are matched
against a listing; other schemes are refused. Costs a listing for a glob. Opens nothing.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from lowtide.blocks.addresses import SCHEMES
from lowtide.blocks.objects import listed, normal_address
from lowtide.errors import discreet

Mapped: TypeAlias = "npt.NDArray[Any]"  # among arrays, only an np.memmap or a view of one has a file
Source: TypeAlias = "str | os.PathLike[str] | Mapped | Sequence[str | os.PathLike[str] | Mapped]"

_DIGITS = re.compile(r"([0-9]+)")
_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(?:/{1,3}[^/]|/{2,}$)")  # pathlib makes s3://x into s3:/x


def natural_key(path: str) -> list[tuple[int, str]]:
    """Sorts digits by their value and text by its characters."""
    # Digits as (number of digits without leading zeros, digits): compares like the number, at any length.
    parts = _DIGITS.split(path)
    return [(len(p.lstrip("0")), p.lstrip("0")) if k % 2 else (0, p) for k, p in enumerate(parts)] + [(0, path)]


def named(source: object) -> list[str | Mapped]:
    """Every file ``source`` names, in order; text with ``*``, ``?`` or ``[`` that names no file is a glob."""
    if isinstance(source, (str, os.PathLike, np.ndarray)):
        return _files_of(source)
    if not isinstance(source, Sequence) or isinstance(source, (bytes, bytearray)):
        raise TypeError(
            f"source: expected a path, a memmap or a list of them, got {type(source).__name__}. Pass text or a Path."
        )
    if len(source) == 0:
        raise ValueError("source: expected at least one file, got an empty list. Name the files to open.")
    return [one for item in source for one in _files_of(item)]


def _files_of(item: object) -> list[str | Mapped]:
    if isinstance(item, np.ndarray):
        return [item]
    if not isinstance(item, (str, os.PathLike)):
        raise TypeError(f"source: expected a path or np.memmap, got {type(item).__name__}. Pass text or a Path.")
    path = os.fsdecode(os.fspath(item))
    if not path:
        raise ValueError("source: expected a path, got empty text. Name the file to open.")
    if "\0" in path:
        raise ValueError(f"source: expected a path, got {path!r} with a zero byte. Name the file to open.")
    if os.path.lexists(path):
        return [path]
    address = normal_address(path)
    if address is not None:
        return list(_objects_of(address))
    _refuse_address(path)
    if not glob.has_magic(path):
        return [path]
    found = sorted(glob.glob(path, recursive=True), key=natural_key)
    if not found:
        raise FileNotFoundError(f"{path}: expected files that match this pattern, got none. Check it with ls.")
    return list(found)


def _objects_of(address: str) -> list[str]:
    """The address itself, or the objects that its pattern matches; a query may hold any sign."""
    if address.startswith("http") or not glob.has_magic(address):
        return [address]
    before = re.split(r"[*?[]", address, maxsplit=1)[0]
    below = before[: before.rindex("/") + 1]
    matches = re.compile(_pattern(address)).fullmatch
    found = sorted((one for one, _ in listed(below) if matches(one)), key=natural_key)
    if not found:
        raise FileNotFoundError(f"{address}: expected objects that match this pattern, got none. Check the address.")
    return found


def _pattern(address: str) -> str:
    """A glob as a regular expression: ``*`` and ``?`` stop at a slash, ``**`` does not."""
    said = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    parts = re.split(r"(\*\*/|\*\*|\*|\?|\[[^\]]+\])", address)
    return "".join(said.get(part, part if part.startswith("[") else re.escape(part)) for part in parts)


def _refuse_address(path: str) -> None:
    """ValueError for an address on another machine: looking it up here would only say that there is no such file."""
    address = _ADDRESS.match(path)
    if address is None:
        return
    scheme = address[1].lower()
    if scheme in SCHEMES:
        what = "a host" if scheme.startswith("http") else "a bucket"
        raise ValueError(f"{path}: expected {what} after {scheme}://, got none. Use {scheme}://NAME/x.npy.")
    if scheme == "file":
        raise ValueError(f"{path}: expected a path, got an address, file://. Leave out 'file://'.")
    path = discreet(path)
    read = ", ".join(f"{one}://" for one in SCHEMES)
    raise ValueError(
        f"{path}: expected a path, or an address of {read}, got one of {scheme}://. "
        "Copy it here first, or mount it as a directory."
    )
