"""What every test may use: hypothesis settings and a count of open descriptors; and what holds for every file of tests:
it leaves no process, no thread and no big temporary file behind."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import sys
import tempfile
import warnings
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from lowtide.blocks.asking import MAKER
from lowtide.machine import file_kind

ROOT = Path(__file__).resolve().parent.parent
# Tests share helpers as `tests.*`, also when pytest was not started with `python -m`.
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

# As many tests run at once as there are cores: threads of torch's own, in each of them and in every process they start,
# would spin against each other. A run of two seconds took thirty.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A shell without job control starts what it runs in the background deaf to Ctrl-C, and children inherit that: the
# tests that press it need processes that hear it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Machines under load miss deadlines without anything being wrong; a failure prints what reproduces it.
settings.register_profile("lowtide", deadline=None, print_blob=True)
settings.load_profile("lowtide")

from tests import faults, leftovers  # noqa: E402 - the path above leads to it


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keeps what collecting made - frameworks and thousands of tests, which stay to the end - out of every later
    garbage collection: each would look through all of it, half a second here and again in every forked child."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()


@pytest.fixture(scope="session")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where ``tempfile`` works during this run, here and in every process started from here."""
    tmp_path_factory.getbasetemp()  # pytest's own directories stay where they are
    directory = Path(tempfile.mkdtemp(prefix="lowtide-"))  # short: sockets have names of 107 bytes at most
    directory.chmod(0o755)
    with pytest.MonkeyPatch.context() as changed:
        changed.setattr(tempfile, "tempdir", str(directory))
        changed.setenv("TMPDIR", str(directory))
        changed.setenv(*leftovers.MARK.split("="))
        yield directory
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="module", autouse=True)
def nothing_left_behind(scratch: Path) -> Iterator[None]:
    """Fails a file of tests that leaves processes, threads or big temporary files behind."""
    before = leftovers.Before(scratch)
    yield
    MAKER.close()  # it lives as long as this process
    left = before.left_since()
    assert not left, "this file of tests left behind: " + "; ".join(left)


@pytest.fixture(scope="session")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory whose files lie on a disk, also where those of ``tmp_path`` live in memory."""
    places = [tmp_path_factory.getbasetemp(), Path("/var/tmp"), ROOT]
    found = [place for place in places if os.access(place, os.W_OK) and not file_kind(place).memory]
    if not found:
        pytest.skip(f"NOT TESTED: what only a disk does. All of {', '.join(map(str, places))} live in memory here.")
    directory = Path(tempfile.mkdtemp(prefix="lowtide-disk-", dir=found[0]))
    yield directory
    shutil.rmtree(directory)


@pytest.fixture
def disk_path(disk: Path) -> Iterator[Path]:
    """Like ``tmp_path``, on a disk: for tests of the page cache, of dirty pages and of direct reads."""
    directory = Path(tempfile.mkdtemp(dir=disk))
    yield directory
    shutil.rmtree(directory)


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


@pytest.fixture(autouse=True)
def python_engine_for_spoiled_calls(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests that stand between Lowtide and ``os.preadv`` test the engine that calls it, unless the disk fails below
    both engines (tests/faults.py)."""
    spoils = any(getattr(value, "__module__", None) == "tests.faults" for value in vars(request.module).values())
    if spoils and not faults.BELOW_BOTH:
        monkeypatch.setenv("LOWTIDE_ENGINE", "python")


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[Any]:
    """One real Ray cluster for all tests of a session: a head that only coordinates and two nodes that work, one of
    which may be lost. Use it from `one_process` tests, so that there is only one cluster."""
    ray = pytest.importorskip("ray", reason="NOT TESTED: Ray is not installed")
    from ray.cluster_utils import Cluster

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] = "0"
    place = os.environ["RAY_TMPDIR"] = tempfile.mkdtemp(prefix="lt-ray-", dir="/tmp")  # short: names of sockets are
    memory = 128 << 20
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        head = {"num_cpus": 0, "object_store_memory": memory, "include_dashboard": False}
        cluster = Cluster(initialize_head=True, head_node_args=head)
        for _ in range(2):
            cluster.add_node(num_cpus=1, object_store_memory=memory)
        ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
        try:
            yield cluster
        finally:
            ray.shutdown()
            cluster.shutdown()  # type: ignore[no-untyped-call,unused-ignore]
            shutil.rmtree(place, ignore_errors=True)
