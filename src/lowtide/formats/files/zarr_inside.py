"""What zarr says of an array, here or behind an address. Runs in the maker only.

Behind an address zarr itself asks obstore for chunks, which tries again what may pass. The array is pinned by the ETag
of its description when it is opened: zarr knows no version of the whole.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from lowtide.blocks.addresses import split_address
from lowtide.blocks.remote import store_of
from lowtide.errors import FormatError, LowtideError
from lowtide.formats.layout import clip

_MOST_LISTED = 20


def described(path: str, source: dict[str, Any] | None, tensor: str) -> Callable[[], dict[str, Any]]:
    """Name, dtype, shape and rows of a chunk of an array."""
    store = None if source is None else store_below(**source)  # here, while the environment is that of who asks
    return partial(_described, path, store, tensor)


def open_zarr(path: str, name: str, store: Any) -> Any:
    zarr = _zarr(path)
    if store is None:
        return zarr.open_array(f"{path}/{name}" if name else path, mode="r")
    return zarr.open_array(zarr.storage.ObjectStore(store, read_only=True), path=name, mode="r")


def _described(path: str, store: Any, tensor: str) -> dict[str, Any]:
    zarr = _zarr(path)
    try:
        opened: Any = zarr.open(path if store is None else zarr.storage.ObjectStore(store, read_only=True), mode="r")
        if isinstance(opened, zarr.Group):
            name, opened = _member(zarr, path, opened, tensor)
        elif tensor:
            raise FormatError(f"{path}: expected a group for tensor={tensor!r}, got one array. Leave tensor= out.")
        else:
            name = ""
        dtype = np.dtype(opened.dtype)
        if dtype.hasobject:
            raise FormatError(f"{path}: expected items of one fixed size, got {clip(dtype)}. Read it with zarr.")
        outer = getattr(opened, "shards", None) or opened.chunks
        band = int(outer[0]) if opened.shape else 1
        pinned = None if store is None else _pinned(store, name)
        described = repr(np.lib.format.dtype_to_descr(np.lib.format.drop_metadata(dtype)))
        about = {"name": name, "dtype": described, "shape": list(opened.shape), "band": max(1, band)}
        return {**about, "pinned": pinned}
    except LowtideError:
        raise
    except Exception as problem:  # of hostile descriptions zarr raises what it likes
        told = clip(str(problem)) if store is None else type(problem).__name__  # its words may repeat a secret
        advice = "Copy it again" if store is None else "Check the address, the credentials and tensor="
        raise FormatError(f"{path}: expected a Zarr array, got one that zarr cannot open ({told}). {advice}.") from None


def _member(zarr: Any, path: str, group: Any, tensor: str) -> tuple[str, Any]:
    """The array that is meant; one that is named needs no listing, which web servers do not give."""
    if tensor:
        with contextlib.suppress(KeyError, ValueError):
            found = group[tensor]
            if isinstance(found, zarr.Array):
                return tensor, found
    names = sorted(name for name, item in group.members(max_depth=None) if isinstance(item, zarr.Array))
    name = tensor or (names[0] if len(names) == 1 else "")
    if name not in names:
        listed = ", ".join(clip(one, 40) for one in names[:_MOST_LISTED]) or "none"
        expected = f"an array {clip(tensor)}" if tensor else "the name of one array"
        advice = f"State tensor={names[0]!r}" if names else "Name another directory"
        raise FormatError(f"{path}: expected {expected}, got {len(names)} arrays: {listed}. {advice}.")
    return name, group[name]


def _zarr(path: str) -> Any:
    try:
        import zarr
        import zarr.storage
    except ImportError:
        raise FormatError(
            f"{path}: expected zarr to decode a Zarr array, got none installed. Install it: pip install "
            "'lowtide[zarr]'."
        ) from None
    return zarr


def store_below(address: str, options: dict[str, Any]) -> Any:
    """obstore's store of everything below an address."""
    options = {**options}
    options.setdefault("retry_config", {"max_retries": 10})
    scheme, bucket, key = split_address(address.rstrip("/"))
    if scheme in ("http", "https"):
        return store_of(address, options)[0]
    return store_of(f"{scheme}://{bucket}/", {**options, "prefix": key})[0]


def _pinned(store: Any, name: str) -> list[Any]:
    """What tells one version of an array's description from another."""
    import obstore

    for description in ("zarr.json", ".zarray"):
        with contextlib.suppress(FileNotFoundError):
            found = obstore.head(store, f"{name}/{description}" if name else description)
            return [found.get("e_tag"), str(found.get("last_modified")), found["size"]]
    return []
