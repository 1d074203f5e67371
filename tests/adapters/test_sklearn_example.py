"""The scikit-learn example learns from more rows than its memory cgroup holds; loading them there is fatal."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.cgroups import ENTER, memory_cgroup_of
from tests.storage.processes import run_python
from tests.test_examples import EXAMPLES, need

import lowtide

pytestmark = [pytest.mark.slow, pytest.mark.one_process]

MIB = 1 << 20
LIMIT = 144 * MIB
SIZE = 192 * MIB


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Three clouds of points, and which row is of which."""
    place = tmp_path_factory.mktemp("sklearn")
    count, chance = SIZE // 512, np.random.default_rng(0)
    with (
        lowtide.create(place / "x.npy", dtype="float32", shape=(-1, 128), cache="drop") as x,
        lowtide.create(place / "y.npy", dtype="int64", cache="drop") as y,
    ):
        for first in range(0, count, 4096):
            label = np.arange(first, first + 4096) * 3 // count
            x.append(chance.standard_normal((4096, 128), np.float32) + label[:, None].astype(np.float32))
            y.append(label)
    yield place
    (place / "x.npy").unlink()


@pytest.fixture
def cgroup() -> Iterator[Path]:
    with memory_cgroup_of(LIMIT, "scikit-learn inside a small cgroup") as directory:
        yield directory


RUN = """
    import runpy, warnings
    warnings.simplefilter("ignore")
    cgroup = sys.argv.pop()
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")
"""


def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """BLAS threads wait by spinning, which on a busy machine takes minutes; and each has buffers of its own."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        monkeypatch.setenv(name, "1")


@pytest.mark.timeout(600)
def test_the_example_learns_from_more_rows_than_its_cgroup_holds(
    rows: Path, cgroup: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need("sklearn")
    one_thread(monkeypatch)
    example = EXAMPLES / "sklearn_partial_fit.py"
    done = run_python(ENTER + RUN, example, rows / "x.npy", rows / "y.npy", cgroup, timeout=550)
    assert done.returncode != -9, "killed for memory"
    assert done.returncode == 0, done.stderr[-2000:]
    assert f"{SIZE // 512} rows, 192 MiB on disk" in done.stdout
    (accuracy,) = re.findall(r"accuracy ([0-9.]+)", done.stdout)
    assert float(accuracy) > 0.9, "shuffled rows teach three classes; rows in order teach the last one"
    assert "directions explain" in done.stdout


def test_loading_the_rows_in_that_cgroup_is_fatal(rows: Path, cgroup: Path) -> None:
    """The negative control."""
    done = run_python(ENTER + "    np.load(sys.argv[1])\n    print('survived')\n", rows / "x.npy", cgroup)
    assert done.returncode != 0
    assert "survived" not in done.stdout


@pytest.mark.timeout(600)
def test_the_example_makes_its_own_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    need("sklearn")
    one_thread(monkeypatch)
    environment = {**os.environ, "PYTHONPATH": str(Path(lowtide.__file__).parent.parent)}
    command = [sys.executable, str(EXAMPLES / "sklearn_partial_fit.py"), "8MiB"]
    text = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=550).stdout
    assert "16384 rows, 8.00 MiB on disk" in text
    assert float(re.findall(r"accuracy ([0-9.]+)", text)[0]) > 0.9
