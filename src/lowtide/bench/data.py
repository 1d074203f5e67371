"""What the paths on a command line hold: tokens or an array, opened as the library would.

One idea: headers decide, and one axis of integers counts as tokens; several paths are one corpus or one array, as a
list is for ``lowtide.open``. Costs what opening costs: headers only.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from lowtide.array import Array
from lowtide.formats import Layout, layout_of, token_layout
from lowtide.formats.layout import HEADERLESS
from lowtide.storage import Store
from lowtide.tokens import Tokens


@dataclass(frozen=True)
class Stated:
    """What the user said about the data; None: nothing."""

    dtype: str | None = None
    shape: tuple[int, ...] | None = None
    tensor: str | None = None


def find(paths: Sequence[str], stated: Stated) -> Layout:
    """The layout of everything the paths name together, or the error that says most about why there is none."""
    # Of a model's many tensors one may look like tokens; which one is meant is for the user to say.
    named = any(path.endswith(".safetensors") for path in paths)
    if stated.shape is not None or stated.tensor is not None or named:
        return layout_of(paths, dtype=stated.dtype, shape=stated.shape, tensor=stated.tensor)
    try:
        return token_layout(paths, dtype=stated.dtype)
    except ValueError as not_tokens:
        try:
            return layout_of(paths, dtype=stated.dtype)
        except IsADirectoryError:
            raise not_tokens from None  # it knows directories, and says what this one lacks


def holds_tokens(layout: Layout) -> bool:
    return len(layout.shape) == 1 and layout.dtype.kind in "iu"


def opened(layout: Layout, *, strategy: str, cache: str, budget: int | str) -> Array | Tokens:
    """An object over the layout: tokens where it holds tokens."""
    store = Store(layout.extents, strategy=strategy, cache=cache, budget=budget)
    if not holds_tokens(layout):
        return Array(layout, store)
    tokens = Tokens(layout, store)
    tokens.vocab, tokens.eot = layout.vocab, layout.eot
    return tokens


def call(layout: Layout, source: str | list[str], stated: Stated, **settings: str) -> str:
    """The line of Python that opens it so."""
    words = [json.dumps(source, ensure_ascii=False)]
    if layout.format in HEADERLESS and stated.dtype is not None:
        words.append(f"dtype={json.dumps(stated.dtype)}")
        if len(layout.shape) > 1:
            words.append(f"shape={(-1, *layout.shape[1:])}")
    if stated.tensor is not None:
        words.append(f"tensor={json.dumps(stated.tensor)}")
    words += [f"{name}={json.dumps(value)}" for name, value in settings.items() if value != "auto"]
    # open_tokens takes neither a shape nor a tensor's name.
    function = "open_tokens" if holds_tokens(layout) and stated.shape is None and stated.tensor is None else "open"
    return f"lowtide.{function}({', '.join(words)})"
