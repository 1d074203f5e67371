"""Inside a real memory cgroup far smaller than the file: no kill, and the cache policy decides by the cgroup."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.storage.processes import run_python

pytestmark = pytest.mark.slow

MIB = 1 << 20
LIMIT = 96 * MIB
ONE = Path("/sys/fs/cgroup/memory")  # version 1
TWO = Path("/sys/fs/cgroup")


@pytest.fixture
def cgroup() -> Iterator[Path]:
    """A new cgroup limited to 96 MiB; skips, loudly, where none can be made."""
    root, limit = (ONE, "memory.limit_in_bytes") if (ONE / "memory.limit_in_bytes").exists() else (TWO, "memory.max")
    if root == TWO and "memory" not in _controllers():
        pytest.skip("NOT TESTED: reading inside a small cgroup (no memory controller is mounted here)")
    directory = root / f"lowtide-{uuid.uuid4().hex[:8]}"
    try:
        directory.mkdir()
        (directory / limit).write_text(str(LIMIT))
    except OSError as problem:
        with contextlib.suppress(OSError):
            directory.rmdir()
        pytest.skip(f"NOT TESTED: reading inside a small cgroup ({problem})")
    swap = directory / ("memory.swap.max" if root == TWO else "memory.swappiness")
    with contextlib.suppress(OSError):
        swap.write_text("0")
    yield directory
    directory.rmdir()


def _controllers() -> list[str]:
    try:
        return (TWO / "cgroup.subtree_control").read_text().split()
    except OSError:
        return []


@pytest.fixture(scope="module")
def big(disk: Path) -> Iterator[Path]:
    path = disk / "cgroup.u8"
    block = os.urandom(4 * MIB)
    with path.open("wb") as file:
        for _ in range(72):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    yield path
    path.unlink()


ENTER = """
    with open(sys.argv[2] + "/cgroup.procs", "w") as file:
        file.write(str(os.getpid()))
"""


@pytest.mark.parametrize("strategy", ["read", "remap", "advise"])
def test_a_file_three_times_the_cgroup_is_read_shuffled_without_a_kill(big: Path, cgroup: Path, strategy: str) -> None:
    script = (
        ENTER
        + """
    with lowtide.open(sys.argv[1], dtype="uint8", shape=(-1, 4096), strategy=sys.argv[3], budget="16MiB") as array:
        plan = array.plan()
        print(plan)
        assert plan.rung != "keep", plan
        assert any("cgroup" in reason and sys.argv[2].rpartition("/")[2] in reason for reason in plan.why), plan.why
        seen = sum(len(rows) for rows in array.shuffled(1024, seed=0))
        assert seen == len(array)
    """
    )
    done = run_python(script, big, cgroup, strategy)
    assert done.returncode != -9, "killed for memory"
    assert done.returncode == 0, done.stderr[-2000:]


def test_outside_the_cgroup_the_same_file_is_kept(big: Path) -> None:
    script = """
    with lowtide.open(sys.argv[1], dtype="uint8", shape=(-1, 4096)) as array:
        plan = array.plan()
        assert plan.rung == "keep", plan
    """
    done = run_python(script, big)
    if "does not fit" in done.stderr:
        pytest.skip("NOT TESTED: this machine itself has less than 1 GiB left")
    assert done.returncode == 0, done.stderr[-2000:]


def test_the_cgroup_really_limits(cgroup: Path) -> None:
    """The negative control: a process that keeps more than the limit is killed there."""
    script = (
        ENTER
        + """
    held = [np.ones(8 * MIB, np.uint8) for _ in range(32)]
    print("survived")
    """
    )
    done = run_python(script, "unused", cgroup)
    assert done.returncode != 0
    assert "survived" not in done.stdout
