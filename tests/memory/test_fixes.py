"""Every line the doctor prints as a fix, run as it stands."""

from __future__ import annotations

import dataclasses
import re
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from lowtide.memory.judge.fixes import fixes
from lowtide.memory.samples import FileSample, ProcessSample

MIB = 1024**2
FORMATS = ("npy", "", "safetensors", "arrow", "hdf5", "parquet", "zip", "gzip", "program", "gguf")
DATABASES = ("lmdb", "leveldb", "sqlite", "duckdb")
KINDS = ("anon", "mapped", "cache", "dirty", "tables", "shmem", "workers", "retained", "nothing")

# What the lines speak of: a program's own names.
AROUND = """
import gc, multiprocessing, os, tempfile
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


def process(runtime: str, pid: int = 10, name: str = "") -> ProcessSample:
    return ProcessSample(pid, 1, name or runtime or "prog", MIB, 0, 0, 0, 0, MIB, 0, 0, False, runtime=runtime)


def file(path: Path | str, format: str, *, memory: bool = False, written: bool = False) -> FileSample:
    return FileSample(str(path), MIB, MIB, 0, MIB, 0, "ext4", memory, format, written=written)


def told(grew: str, *files: FileSample, runtime: str = "python", name: str = "") -> str:
    return " ".join(str(fix) for fix in fixes(grew, files, [process(runtime, name=name)]))


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
    elif format == "sqlite":
        with sqlite3.connect(path) as database:
            database.execute("create table t (a)")
    else:
        path.write_bytes(bytes(8192))
    return path


def run(code: str, path: Path | None = None, *, before: str = "") -> None:
    given = AROUND + before + (MEMMAP.format(path=str(path)) if "memmap" in code and path else "")
    names = ("safetensors", "pyarrow", "h5py", "sqlite3", "lmdb")
    imports = "".join(f"import {name}\n" for name in names if f"{name}." in code)
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


def test_what_is_printed_for_a_mapped_database_runs_on_it(tmp_path: Path) -> None:
    path = made(tmp_path, "sqlite")
    (line,) = [fix.run for fix in fixes("mapped", [file(path, "sqlite")], [process("python")])]
    run(line)


@pytest.mark.parametrize("format", DATABASES)
@pytest.mark.parametrize("grew", ["mapped", "cache"])
def test_no_database_is_told_to_be_an_array(format: str, grew: str) -> None:
    for runtime in ("python", "", "node"):
        text = told(grew, file("/data/x.bin", format), runtime=runtime)
        assert "lowtide" not in text and "fadvise" not in text and "np.memmap" not in text


def test_only_names_under_which_people_keep_bare_numbers_are_read_as_arrays() -> None:
    for name in ("x.bin", "x", "x.f32", "x.uint16", "x.memmap"):
        assert "lowtide.open" in told("mapped", file(f"/data/{name}", ""))
    for name in ("libtorch_cpu.so.2", "x.pak", "x.db", "x.py"):
        assert "lowtide.open" not in told("mapped", file(f"/data/{name}", "program" if ".so" in name else ""))
    assert told("mapped").startswith("nothing has to be done")  # library code: no file is the answer


def test_a_program_that_only_writes_is_not_told_how_to_read() -> None:
    text = told("cache", file("/data/out.npy", "npy", written=True))
    assert "lowtide.open" not in text and "read" not in text.replace("O_RDONLY", "")
    assert "lowtide.open" in told("cache", file("/data/out.npy", "npy"))  # the control
    for runtime in ("", "java"):
        assert "file.fileno()" not in told("dirty", runtime=runtime)


def test_only_torch_is_told_about_its_loader() -> None:
    for name in ("gunicorn", "python", "redis-server"):
        runtime = "" if name == "redis-server" else "python"
        for grew in ("workers", "shmem", "anon"):
            assert "DataLoader" not in told(grew, runtime=runtime, name=name)
    assert "DataLoader" in told("workers", name="pt_data_worker")
    assert "DataLoader" in told("shmem", file("/dev/shm/torch_1_2_0", "", memory=True))
    assert "--max-requests" in told("workers", name="gunicorn")
    assert "redis-cli" in told("anon", runtime="", name="redis-server")


def test_no_switch_is_offered_that_does_not_bound_what_grew() -> None:
    assert "--max-old-space-size" not in told("anon", runtime="node")  # Buffers lie outside of it
    assert "arrayBuffers" in told("anon", runtime="node")
    assert "MaxDirectMemorySize" in told("anon", runtime="java")
    lazy = dataclasses.replace(process("python"), retained_from="lazyfree")
    assert not any("ARENA" in str(fix) for fix in fixes("retained", [], [lazy]))  # another allocator than glibc's


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("runtime", ["python", "node", "java", ""])
def test_no_fix_opens_what_lowtide_does_not_read(format: str, runtime: str) -> None:
    for grew in ("mapped", "cache"):
        text = told(grew, file("/data/x", format), runtime=runtime)
        assert ("lowtide.open" in text) == (runtime == "python" and format in ("npy", "")), text
        if runtime != "python":
            assert "np.memmap" not in text


def test_no_runtime_is_sent_to_the_tools_of_another() -> None:
    for runtime, word in (("python", "tracemalloc"), ("node", "node --"), ("java", "jcmd"), ("", "libmemusage")):
        text = told("anon", runtime=runtime)
        assert word in text
        assert ("tracemalloc" in text) == (runtime == "python")


def test_every_kind_has_a_fix_and_nothing_has_none() -> None:
    for grew in KINDS:
        found = fixes(grew, [file("/data/x", "npy", memory=grew == "shmem")], [process("python")])
        assert bool(found) == (grew != "nothing")
        assert not any("{" in fix.run for fix in found)  # every place is filled in


@pytest.mark.slow
@pytest.mark.parametrize("grew", ["anon", "dirty", "tables", "workers", "retained"])
def test_what_is_printed_for_python_runs(grew: str, tmp_path: Path) -> None:
    path = made(tmp_path, "npy")
    for fix in fixes(grew, [], [process("python")]):
        if not fix.run or "COMMAND" in fix.run or fix.run.startswith(("sysctl", "memray")):
            continue  # what a machine's owner decides, and a tool of others
        needs_torch = "DataLoader" in fix.run
        run(fix.run.replace("  # later: ", "\n"), path, before=DATASET if needs_torch else "")


def test_unlinking_shared_memory_runs_and_frees_it(tmp_path: Path) -> None:
    path = Path("/dev/shm") / f"lowtide-fix-{tmp_path.name}"
    path.write_bytes(bytes(4096))
    (line, *_) = [fix.run for fix in fixes("shmem", [file(path, "", memory=True)], [process("python")])]
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
    look, snapshot = (fix.run for fix in fixes("anon", [], [process("node")]))
    words = snapshot.replace("APP.js", str(script)).split()
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout == "ran\n", done.stderr
    assert "arrayBuffers" in subprocess.run(["node", "-e", look], capture_output=True, text=True).stdout


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
