"""A real memory cgroup of a test's own, of either version; where none can be made a test skips, loudly."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

ONE = Path("/sys/fs/cgroup/memory")  # version 1
TWO = Path("/sys/fs/cgroup")

# First lines of a script that is to run inside: its last argument is the cgroup's directory.
ENTER = """
    with open(sys.argv[-1] + "/cgroup.procs", "w") as file:
        file.write(str(os.getpid()))
"""


@contextlib.contextmanager
def memory_cgroup_of(limit: int, what: str) -> Iterator[Path]:
    """The directory of a new cgroup limited to ``limit`` bytes; ``what`` is what a skip says was not tested."""
    root, name = (ONE, "memory.limit_in_bytes") if (ONE / "memory.limit_in_bytes").exists() else (TWO, "memory.max")
    if root == TWO and "memory" not in _controllers():
        pytest.skip(f"NOT TESTED: {what} (no memory controller is mounted here)")
    directory = root / f"lowtide-{uuid.uuid4().hex[:8]}"
    try:
        directory.mkdir()
        (directory / name).write_text(str(limit))
    except OSError as problem:
        with contextlib.suppress(OSError):
            directory.rmdir()
        pytest.skip(f"NOT TESTED: {what} ({problem})")
    with contextlib.suppress(OSError):
        (directory / ("memory.swap.max" if root == TWO else "memory.swappiness")).write_text("0")
    try:
        yield directory
    finally:
        directory.rmdir()


def _controllers() -> list[str]:
    try:
        return (TWO / "cgroup.subtree_control").read_text().split()
    except OSError:
        return []
