"""Write a file so that a reader, a crash or a full disk never meets half of it.

One idea: bytes go to a temporary beside the target, reach the disk, and only then take the target's name. Costs two
fsyncs per file. Does not lock: of two writers the last one wins, whole.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


@contextlib.contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A binary file that becomes ``path`` when the block ends well, and vanishes when it does not."""
    target = Path(path)
    # A name of its own for every writer: two processes that save the same target must not share a temporary.
    temporary = target.with_name(f".{target.name}.{os.getpid()}-{os.urandom(4).hex()}.tmp")
    try:
        with temporary.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_directory(target.parent)


def sync_directory(directory: Path) -> None:
    """Make the rename itself durable; filesystems that cannot sync a directory are left as they are."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
