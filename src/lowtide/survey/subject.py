"""What the paths on a command line hold: tokens or an array, opened as the library would.

Headers decide, and one axis of integers counts as tokens; several paths are one corpus or one array, like a list given
to ``lowtide.open``. For a headerless file without a stated dtype there is a guess, marked as one: the library itself
asks for the dtype. Costs what opening costs, and one block of 64 KiB for a guess.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from lowtide.array import Array
from lowtide.blocks.block_store import open_store
from lowtide.errors import discreet
from lowtide.formats import ArrayMember, Layout, MissingDtypeError, layout_of, members_of, token_layout
from lowtide.formats.layout import HEADERLESS
from lowtide.tokens import Tokens


@dataclass(frozen=True)
class StatedData:
    """What the user said about the data; None: nothing."""

    dtype: str | None = None
    shape: tuple[int, ...] | None = None
    tensor: str | None = None
    part: str | None = None


@dataclass(frozen=True)
class Opening:
    """How to open it, as ``lowtide.open`` takes it."""

    strategy: str = "auto"
    cache: str = "auto"
    budget: int | str = "auto"
    engine: str = "auto"


@dataclass(frozen=True)
class Subject:
    """What was named and what it holds. ``stated`` includes a guessed dtype, because opening needs one."""

    paths: tuple[str, ...]
    stated: StatedData
    layout: Layout
    dtype_guessed: bool = False

    @property
    def kind(self) -> str:
        return "tokens" if holds_tokens(self.layout) else "array"

    def tokens_by_part(self) -> dict[str, int]:
        """How many tokens each part of a directory has, if it holds several; the described part comes first."""
        if self.layout.part is None:
            return {}
        others = {
            part: _layout(self.paths, replace(self.stated, part=part)).shape[0] for part in self.layout.other_parts
        }
        return {self.layout.part: self.layout.shape[0], **others}

    def call(self, opening: Opening) -> str:
        """The line of Python that opens it this way."""
        layout, stated = self.layout, self.stated
        paths = [discreet(path) for path in self.paths]
        words = [json.dumps(paths[0] if len(paths) == 1 else paths, ensure_ascii=False)]
        if layout.format in HEADERLESS and stated.dtype is not None:
            words.append(f"dtype={json.dumps(stated.dtype)}")
            if stated.shape is not None or len(layout.shape) > 1:
                words.append(f"shape={stated.shape or (-1, *layout.shape[1:])}")
        if stated.tensor is not None:
            words.append(f"tensor={json.dumps(stated.tensor)}")
        if stated.part is not None:
            words.append(f"part={json.dumps(stated.part)}")
        words += [f"{name}={json.dumps(value)}" for name, value in vars(opening).items() if value != "auto"]
        # open_tokens takes no shape, and a tensor's name does not tell that it holds tokens.
        plain = stated.shape is None and stated.tensor is None
        function = "open_tokens" if holds_tokens(layout) and plain else "open"
        return f"lowtide.{function}({', '.join(words)})"


def find(paths: Sequence[str], stated: StatedData) -> Subject:
    """Everything the paths name together, or the error that best explains why there is nothing."""
    try:
        return Subject(tuple(paths), stated, _layout(paths, stated))
    except MissingDtypeError as problem:
        if problem.guess is None:
            raise
        guessed = replace(stated, dtype=problem.guess)
        try:
            return Subject(tuple(paths), guessed, _layout(paths, guessed), dtype_guessed=True)
        except ValueError:
            raise problem from None  # an error about a dtype that nobody stated would mislead


def _layout(paths: Sequence[str], stated: StatedData) -> Layout:
    # One of a model's many tensors may look like tokens; the user must say which is meant.
    named = any(path.endswith((".safetensors", ".npz", ".h5", ".hdf5")) for path in paths)
    if stated.shape is not None or stated.tensor is not None or named:
        return layout_of(paths, dtype=stated.dtype, shape=stated.shape, tensor=stated.tensor)
    if stated.part is not None:
        return token_layout(paths, dtype=stated.dtype, part=stated.part)
    try:
        return token_layout(paths, dtype=stated.dtype)
    except ValueError as not_tokens:
        try:
            return layout_of(paths, dtype=stated.dtype)
        except IsADirectoryError:
            raise not_tokens from None  # it knows directories, and says what is missing in this one


def holds_tokens(layout: Layout) -> bool:
    return len(layout.shape) == 1 and layout.dtype.kind in "iu"


def opened(layout: Layout, opening: Opening) -> Array | Tokens:
    """An object over the layout: `Tokens` if it holds tokens. The only place that builds one from a layout."""
    store = open_store(layout.extents, **vars(opening))
    if not holds_tokens(layout):
        return Array(layout, store)
    return Tokens(layout, store, vocab=layout.vocab, eot=layout.eot, bos=layout.bos)


def several_members(paths: Sequence[str]) -> tuple[ArrayMember, ...]:
    """The arrays of one file that holds more than one, each readable in place or not; none for any other file."""
    if len(paths) != 1 or not Path(paths[0]).is_file():
        return ()
    members = members_of(paths[0])
    return members if len(members) > 1 else ()


def in_rows(layout: Layout, width: int) -> Layout:
    """One axis of numbers as rows of ``width``; a remainder at the end is left out."""
    if len(layout.shape) > 1:
        raise ValueError(f"--row: expected data along one axis, got shape {layout.shape}. Leave --row out.")
    count = layout.shape[0] // width
    if count == 0:
        raise ValueError(
            f"{layout.extents[0].path}: expected {width} items or more for one row, got {layout.shape[0]}. "
            f"Use --row {max(1, layout.shape[0] // 64)}."
        )
    return replace(layout, shape=(count, width))
