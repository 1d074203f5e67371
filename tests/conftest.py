"""What every test may use: hypothesis settings, a count of open descriptors, and fresh processes."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

ROOT = Path(__file__).resolve().parent.parent
# Tests share helpers as `tests.*`, also when pytest was not started with `python -m`.
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

# Machines under load miss deadlines without anything being wrong; a failure prints what reproduces it.
settings.register_profile("lowtide", deadline=None, print_blob=True)
settings.load_profile("lowtide")


def open_descriptors() -> set[str]:
    """The numbers of this process's descriptors, the one that lists them left out."""
    return {entry.name for entry in Path("/proc/self/fd").iterdir() if entry.exists()}


@pytest.fixture
def no_lost_descriptors() -> Iterator[None]:
    """Fails a test that ends with more open files than it began with."""
    before = open_descriptors()
    yield
    gc.collect()  # an error that crossed a thread holds its frames, and they hold it
    lost = open_descriptors() - before
    assert not lost, f"descriptors still open: {sorted(str(Path(f'/proc/self/fd/{n}').readlink()) for n in lost)}"
