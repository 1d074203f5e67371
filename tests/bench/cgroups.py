"""A real memory cgroup with a small limit, for what only the kernel's own killer can show."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

ONE = Path("/sys/fs/cgroup/memory")  # version 1
TWO = Path("/sys/fs/cgroup")


@contextlib.contextmanager
def small_cgroup(what: str, *, limit: int) -> Iterator[Path]:
    """A new cgroup without swap; skips, loudly, where none can be made. ``what``: what is then not tested."""
    first = (ONE / "memory.limit_in_bytes").exists()
    directory = (ONE if first else TWO) / f"lowtide-{uuid.uuid4().hex[:8]}"
    try:
        directory.mkdir()
        (directory / ("memory.limit_in_bytes" if first else "memory.max")).write_text(str(limit))
    except OSError as problem:
        with contextlib.suppress(OSError):
            directory.rmdir()
        pytest.skip(f"NOT TESTED: {what} - no memory cgroup can be made here ({problem})")
    with contextlib.suppress(OSError):
        swap = directory / ("memory.memsw.limit_in_bytes" if first else "memory.swap.max")
        swap.write_text(str(limit) if first else "0")
    yield directory
    directory.rmdir()
