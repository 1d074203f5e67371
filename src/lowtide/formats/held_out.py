"""Whether a corpus would mix training files with held-out ones, told by their names.

One idea: the words of a name decide - ``fineweb_val_000000.bin`` has the word val, ``interval.bin`` has not - and of a
path only the part below the directory that all files share. Costs a few set operations. Opens nothing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from lowtide.errors import FormatError

_TRAIN = {"train", "training"}
_HELD_OUT = {"val", "valid", "validation", "dev", "test", "eval"}
_WORD = re.compile(r"[a-z]+")


def refuse_train_with_val(where: str, paths: Sequence[str]) -> None:
    """FormatError where ``paths``, named together by ``where``, hold both; it names one of each and the way out."""
    if len(paths) < 2:
        return
    whole = [os.path.abspath(path) for path in paths]  # noqa: PTH100 - a Path per shard would cost more
    shared = os.path.commonpath([os.path.dirname(path) for path in whole])  # noqa: PTH120
    names = [os.path.relpath(path, shared) for path in whole]
    words = [set(_WORD.findall(name.lower())) for name in names]
    held_out = [name for name, found in zip(names, words, strict=True) if found & _HELD_OUT and not found & _TRAIN]
    train = [name for name, found in zip(names, words, strict=True) if found & _TRAIN and not found & _HELD_OUT]
    if not train or not held_out:
        return
    ending = Path(train[0]).suffix
    pattern = train[0] if len(train) == 1 else f"*train*{ending}" if os.sep not in train[0] else Path(train[0]).parent
    raise FormatError(
        f"{where}: expected one corpus, got train and val files together ({train[0]} and {held_out[0]}). "
        f"Pass {Path(shared) / pattern} or {Path(shared) / held_out[0]}."
    )
