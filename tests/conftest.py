"""What every test may use: hypothesis settings, a count of open descriptors, and one Ray cluster for all."""

from __future__ import annotations

import gc
import os
import shutil
import sys
import tempfile
import warnings
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


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[None]:
    """One real local Ray cluster for all tests of a run: starting one takes seconds. Use it from `serial` tests: they
    run in one process, so there is only one cluster."""
    ray = pytest.importorskip("ray", reason="NOT TESTED: Ray is not installed")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    place = tempfile.mkdtemp(prefix="lt-ray-")  # short: names of sockets are
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ray.init(
            num_cpus=2,
            object_store_memory=256 << 20,
            include_dashboard=False,
            log_to_driver=False,
            logging_level="ERROR",
            _temp_dir=place,
        )
        try:
            yield
        finally:
            ray.shutdown()
            shutil.rmtree(place, ignore_errors=True)
