"""Every line the doctor prints as a fix, run as it stands."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from lowtide.memory.judge.fixes import fixes
from lowtide.memory.samples import FileSample, ProcessSample

MIB = 1024**2
FORMATS = ("npy", "", "safetensors", "arrow", "hdf5", "parquet", "zip", "gzip", "sqlite", "program", "gguf")
KINDS = ("anon", "mapped", "cache", "dirty", "tables", "shmem", "workers", "retained", "nothing")

# What the lines speak of: a program's own names.
AROUND = """
import os, tempfile
import numpy as np
import lowtide
file = tempfile.TemporaryFile()
items = [("a", 1), ("b", 2)] * 1000
"""
MEMMAP = "memmap = np.memmap({path!r}, dtype=np.uint8, mode='r')\n"
DATASET = """
from torch.utils.data import DataLoader as Loader
class Dataset(list): pass
dataset = Dataset(range(4))
def DataLoader(*words, **settings):
    settings.setdefault("num_workers", 1)
    return Loader(*words, **settings)
"""


def process(runtime: str, pid: int = 10) -> ProcessSample:
    return ProcessSample(pid, 1, runtime or "prog", MIB, 0, 0, 0, 0, MIB, 0, 0, False, runtime=runtime)


def file(path: Path | str, format: str) -> FileSample:
    return FileSample(str(path), MIB, MIB, 0, MIB, 0, "ext4", False, format)


def made(directory: Path, format: str) -> Path:
    """A real file of a format."""
    path = directory / f"data.{format or 'bin'}"
    if format == "npy":
        np.save(path, np.zeros((64, 16), np.float32))
    elif format == "safetensors":
        numpy = pytest.importorskip("safetensors.numpy", reason="NOT TESTED: the fix for safetensors files")
        numpy.save_file({"a": np.zeros(8, np.float32)}, path)
    elif format == "arrow":
        pyarrow = pytest.importorskip("pyarrow", reason="NOT TESTED: the fix for Arrow files")
        table = pyarrow.table({"a": [1, 2, 3]})
        with pyarrow.OSFile(str(path), "wb") as sink, pyarrow.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
    elif format == "hdf5":
        h5py = pytest.importorskip("h5py", reason="NOT TESTED: the fix for HDF5 files")
        h5py.File(path, "w").close()
    else:
        path.write_bytes(bytes(8192))
    return path


def run(code: str, path: Path | None = None, *, before: str = "") -> None:
    given = AROUND + before + (MEMMAP.format(path=str(path)) if "memmap" in code and path else "")
    imports = "".join(f"import {name}\n" for name in ("safetensors", "pyarrow", "h5py") if f"{name}." in code)
    done = subprocess.run([sys.executable, "-c", imports + given + code], capture_output=True, text=True)
    assert done.returncode == 0, f"{code}\n{done.stderr}"


@pytest.mark.parametrize("grew", ["mapped", "cache"])
@pytest.mark.parametrize("format", ["npy", "", "safetensors", "arrow", "hdf5"])
def test_what_is_printed_for_a_file_runs_on_that_file(grew: str, format: str, tmp_path: Path) -> None:
    path = made(tmp_path, format)
    lines = [fix.run for fix in fixes(grew, [file(path, format)], [process("python")]) if fix.run]
    assert lines
    for line in lines:
        run(line, path)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("runtime", ["python", "node", "java", ""])
def test_no_fix_opens_what_lowtide_does_not_read(format: str, runtime: str) -> None:
    for grew in ("mapped", "cache"):
        text = " ".join(str(fix) for fix in fixes(grew, [file("/data/x", format)], [process(runtime)]))
        assert ("lowtide.open" in text) == (runtime == "python" and format in ("npy", "")), text
        if runtime != "python":
            assert "np.memmap" not in text


def test_no_runtime_is_sent_to_the_tools_of_another() -> None:
    for runtime, word in (("python", "tracemalloc"), ("node", "node --"), ("java", "jcmd"), ("", "libmemusage")):
        text = " ".join(str(fix) for fix in fixes("anon", [], [process(runtime)]))
        assert word in text
        assert ("tracemalloc" in text) == (runtime == "python")


def test_every_kind_has_a_fix_and_nothing_has_none() -> None:
    for grew in KINDS:
        found = fixes(grew, [file("/data/x", "npy")], [process("python")])
        assert bool(found) == (grew != "nothing")
        assert not any("{" in fix.run for fix in found)  # every place is filled in


@pytest.mark.slow
@pytest.mark.parametrize("grew", ["anon", "dirty", "tables", "workers", "retained"])
def test_what_is_printed_for_python_runs(grew: str, tmp_path: Path) -> None:
    path = made(tmp_path, "npy")
    for fix in fixes(grew, [], [process("python")]):
        if not fix.run or "COMMAND" in fix.run:
            continue
        needs_torch = "DataLoader" in fix.run
        run(fix.run.replace("  # later: ", "\n"), path, before=DATASET if needs_torch else "")


def test_unlinking_shared_memory_runs_and_frees_it(tmp_path: Path) -> None:
    path = Path("/dev/shm") / f"lowtide-fix-{tmp_path.name}"
    path.write_bytes(bytes(4096))
    (line, *_) = [fix.run for fix in fixes("shmem", [file(path, "")], [process("python")])]
    run(line)
    assert not path.exists()


@pytest.mark.parametrize("grew", ["anon", "retained"])
def test_settings_for_a_command_that_is_no_python_start_it(grew: str) -> None:
    (line,) = [fix.run for fix in fixes(grew, [], [process("")]) if "COMMAND" in fix.run]
    done = subprocess.run(["sh", "-c", line.replace("COMMAND", "ls /")], capture_output=True, text=True)
    assert done.returncode == 0
    assert "ERROR" not in done.stderr or "libmemusage" not in done.stderr  # ld.so says when it found no such library


def test_nodes_own_switches_are_taken_by_node(tmp_path: Path) -> None:
    if shutil.which("node") is None:
        pytest.skip("NOT TESTED: node is not installed here")
    script = tmp_path / "app.js"
    script.write_text("console.log('ran')")
    for fix in fixes("anon", [], [process("node")]):
        done = subprocess.run(
            fix.run.replace("APP.js", str(script)).split(), capture_output=True, text=True, cwd=tmp_path
        )
        assert done.stdout == "ran\n", done.stderr


@pytest.mark.slow
def test_javas_own_tools_answer_for_a_running_program() -> None:
    if shutil.which("java") is None or shutil.which("jcmd") is None:
        pytest.skip("NOT TESTED: java and jcmd are not installed here")
    program = Path(__file__).with_name("planted") / "Heap.java"
    with subprocess.Popen(["java", str(program)], env={"PATH": "/usr/bin:/bin", "SECONDS": "120"}) as child:
        histogram, bound = (fix.run for fix in fixes("anon", [], [process("java", child.pid)]))
        assert re.fullmatch(r"jcmd \d+ GC\.class_histogram", histogram)
        done = subprocess.run(histogram.split(), capture_output=True, text=True)
        while "byte" not in done.stdout and child.poll() is None:
            done = subprocess.run(histogram.split(), capture_output=True, text=True)
        child.kill()
    assert "[B" in done.stdout
    words = bound.replace("-jar APP.jar", "-version").split()
    assert subprocess.run(words, capture_output=True).returncode == 0
