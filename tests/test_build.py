"""Building the package: what a failed compiler leaves behind, and what the source distribution carries."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what the build reads: building in place would leave its files among the sources."""
    place = tmp_path_factory.mktemp("build") / "lowtide"
    place.mkdir()
    shutil.copytree(ROOT / "src", place / "src", ignore=shutil.ignore_patterns("*.so", "__pycache__", "*.egg-info"))
    shutil.copytree(ROOT / "tests", place / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, place)
    return place


def setup(source: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "setup.py", "--quiet", *words]
    return subprocess.run(
        command, cwd=source, env={**os.environ, **environment}, capture_output=True, text=True, check=True
    )


@pytest.mark.parametrize(
    ("compiler", "reason"),
    [
        ("false", "the C compiler (false) failed at install; pip install --verbose shows what it said"),
        ("no-such-compiler", "no C compiler (no-such-compiler) was found at install"),
    ],
)
def test_a_compiler_that_fails_leaves_one_line_with_the_reason(source: Path, compiler: str, reason: str) -> None:
    setup(source, "build_ext", CC=compiler)
    (note,) = source.glob("build/lib*/lowtide/engine/not_built.txt")
    assert note.read_text().splitlines() == [reason]


def test_the_source_distribution_has_the_c_files_and_no_tests_that_cannot_run(source: Path) -> None:
    setup(source, "sdist", "--formats", "tar")
    (archive,) = (source / "dist").iterdir()
    with tarfile.open(archive) as found:
        names = {name.partition("/")[2] for name in found.getnames()}
    assert {f"src/lowtide/engine/{path.name}" for path in (ROOT / "src/lowtide/engine").glob("*.[ch]")} <= names
    assert not {name for name in names if name.startswith("tests/")}
