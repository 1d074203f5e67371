"""What a strategy is: how bytes leave the file.

One idea: a strategy says what it wants - neighbours merged, windows widened on the way - and the store asks nothing
else about it. All strategies fill the same bytes or raise the same errors.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from lowtide.storage.buffers import Buffer
from lowtide.storage.spans import Ahead, Spans


class Strategy(Protocol):
    """How bytes leave the file. All of them fill the same bytes or raise the same errors."""

    @property
    def name(self) -> str: ...
    @property
    def rung(self) -> str: ...
    @property
    def merges(self) -> bool:
        """Whether reading neighbours together pays."""
        ...

    @property
    def widens(self) -> bool:
        """Whether it has ``windows``: read and widened in one pass."""
        ...

    def fill(self, spans: Spans, buffer: Buffer, *, ahead: Ahead = None, scattered: bool) -> None: ...
    def fetch(self, spans: Spans) -> NDArray[np.uint8] | None:
        """Equal runs as rows of a fresh array, where there is a way without a buffer between; else None."""
        ...

    def close(self) -> None: ...
