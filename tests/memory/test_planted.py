"""Programs that do one thing to memory on purpose, each judged by ``lowtide doctor`` from outside: the right verdict,
the right owner, and owners that add up."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.memory.programs import PROGRAMS, Program, cannot, wrong
from tests.memory.programs import judged as judged_program

PLANTED = Path(__file__).with_name("planted")
# The others take longer, or need what is not installed for the tests: `make doctors` runs them all.
EVERY_TIME = (
    "leak behind a file that is read",
    "tmpfs, files closed",
    "mlock of a mapped file",
    "copy-on-write behind a snapshot",
    "C, 500 MiB in 0.3 s",
    "bus error, tmpfs full",
    "bus error, file truncated",
)
DOCTOR = [sys.executable, "-m", "lowtide", "doctor", "--json"]
MIB = 1024**2

pytestmark = pytest.mark.slow


def judged(*words: str, options: tuple[str, ...] = (), seconds: str = "4", check: bool = True) -> dict[str, Any]:
    done = subprocess.run(
        [*DOCTOR, *options, "--", *words], capture_output=True, text=True, env={**os.environ, "SECONDS": seconds}
    )
    assert done.stdout, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    if check:
        assert found["ended"]["how"] == "exit", found["ended"]
        assert found["ended"]["code"] == found["exit_code"] == 0, done.stderr
        owners_add_up(found)
    return found


def owners_add_up(found: dict[str, Any]) -> None:
    """For every kind that weighs something: owners sum to the peak, and under a tenth of it is unexplained."""
    for kind, held in found["held"].items():
        if kind == "total" or held["peak"] < 16 * MIB:
            continue
        assert sum(owner["bytes"] for owner in held["owners"]) == held["peak"], kind
        unexplained = sum(owner["bytes"] for owner in held["owners"] if owner["what"] == "unexplained")
        assert unexplained < 0.1 * held["peak"], f"{kind}: {json.dumps(held, indent=1)}"


def owner(found: dict[str, Any], kind: str) -> dict[str, Any]:
    """The largest owner of a kind, library code aside: the interpreter brings that along."""
    mine = [each for each in found["held"][kind]["owners"] if each["what"] not in ("library code", "smaller files")]
    return mine[0] if mine else {}


def python(name: str, directory: Path) -> tuple[str, ...]:
    return (sys.executable, str(PLANTED / f"{name}.py"), str(directory))


def alone(program: Program) -> Any:
    """What is said of a tmpfs holds where nobody else fills and empties it meanwhile."""
    return pytest.param(program, marks=[pytest.mark.serial] if "tmpfs" in program.name else [], id=program.name)


@pytest.mark.parametrize("program", [alone(each) for each in PROGRAMS if each.name in EVERY_TIME])
def test_a_program_is_judged_as_what_is_true_of_it(program: Program, disk_path: Path) -> None:
    if why := cannot(program):
        pytest.skip(f"NOT TESTED: {program.name} - {why}")
    try:
        found, truth = judged_program(program, disk_path)
    except OSError as problem:
        pytest.skip(f"NOT TESTED: {program.name} - this machine refuses it ({problem})")
    assert not wrong(program, found, truth), json.dumps(found["verdict"], indent=1)
    owners_add_up(found)


@pytest.mark.parametrize(
    ("planted", "kind", "name"),
    [
        ("anon", "anon", "process "),
        ("mapped", "mapped", "rows.bin"),
        ("cache", "cache", "read.bin"),
        ("dirty", "dirty", "written.bin"),
        ("tables", "tables", "process "),
        ("shmem", "shmem", "/dev/shm/"),
    ],
)
def test_a_kind_that_grows_is_the_verdict_and_its_owner_has_nearly_all_of_it(
    planted: str, kind: str, name: str, disk_path: Path
) -> None:
    found = judged(*python(planted, disk_path))
    verdict = found["verdict"]
    assert verdict["grew"] == kind, json.dumps(verdict, indent=1)
    assert verdict["confidence"] in ("high", "medium")
    assert name in verdict["who"][0]["name"]
    assert verdict["who"][0]["grew"] > 0
    assert name in owner(found, kind)["name"]
    library = sum(each["bytes"] for each in found["held"][kind]["owners"] if each["what"] == "library code")
    assert owner(found, kind)["bytes"] >= 0.95 * (found["held"][kind]["peak"] - library) - 8 * MIB


def test_a_program_that_holds_little_and_grows_nothing_is_nothing(disk_path: Path) -> None:
    found = judged(*python("healthy", disk_path))
    assert found["verdict"]["grew"] == "nothing"
    assert found["held"]["total"]["peak"] < 200 * MIB
    assert found["verdict"]["danger"] is False


def test_forked_children_that_copy_are_workers_and_own_what_they_copied(disk_path: Path) -> None:
    found = judged(*python("workers", disk_path))
    assert found["verdict"]["grew"] == "workers", json.dumps(found["verdict"], indent=1)
    assert len(found["verdict"]["who"]) == 2
    assert all(each["what"] == "process" for each in found["verdict"]["who"])


@pytest.mark.doctors
def test_loader_workers_over_a_list_of_tuples_are_workers_and_no_library_is_blamed(disk_path: Path) -> None:
    found = judged(*python("loader", disk_path))
    verdict = found["verdict"]
    assert verdict["grew"] == "workers", json.dumps(verdict, indent=1)
    assert all("pt_data_worker" in each["name"] for each in verdict["who"])
    assert not any(".so" in line for line in verdict["fix"])
    assert found["held"]["anon"]["peak"] > 250 * MIB


@pytest.mark.doctors
def test_a_memmap_resident_from_the_start_is_held_by_its_file_and_grew_nothing(disk_path: Path) -> None:
    size = 256 * MIB
    table = disk_path / "table.bin"
    with table.open("wb") as file:
        for _ in range(size // MIB):
            file.write(os.urandom(MIB))
        os.fsync(file.fileno())
    found = judged(*python("resident", table), seconds="6")
    assert found["verdict"]["grew"] in ("nothing", "mapped")
    held = found["held"]["mapped"]
    assert owner(found, "mapped") == {"name": str(table), "bytes": pytest.approx(size, rel=0.05), "what": "file"}
    assert held["end"] == pytest.approx(held["peak"], rel=0.05)  # not what was left while the interpreter exited
    assert found["held"]["total"]["takeable"] >= 0.95 * size


def test_heap_freed_and_kept_by_the_allocator_is_retained_with_a_setting_to_change(disk_path: Path) -> None:
    found = judged(*python("retained", disk_path))
    verdict = found["verdict"]
    assert verdict["grew"] == "retained", json.dumps(verdict, indent=1)
    assert verdict["confidence"] == "high"
    largest = owner(found, "anon")
    assert largest["what"] == "allocator"
    assert largest["bytes"] == pytest.approx(2600 * 100_000, rel=0.05)
    assert any("MALLOC_ARENA_MAX" in line for line in verdict["fix"])
    assert any("lowtide.release()" in line for line in verdict["fix"])


def test_pages_that_are_dirty_and_mapped_count_once(disk_path: Path) -> None:
    size = 192 * MIB
    trace = disk_path / "trace.jsonl"
    # Without the check of owners: pages are mapped 6 MiB at a time and become clean when the kernel writes them. Until
    # the next close look what became mapped since the last one has no owner, and little else may be mapped by then.
    found = judged(*python("overlap", disk_path), options=("--save", str(trace)), check=False)
    assert found["ended"]["how"] == "exit" and found["exit_code"] == 0
    for held in (found["held"]["mapped"], found["held"]["dirty"]):
        assert sum(owner["bytes"] for owner in held["owners"]) == held["peak"]
    lines = [json.loads(line) for line in trace.read_text().splitlines()]
    samples = [line for line in lines if "seconds" in line]
    assert max(sample["mapped"] + sample["dirty"] + sample["cache"] for sample in samples) < size + 96 * MIB
    assert max(sample["processes"][0]["rss_file"] for sample in samples) > 0.9 * size  # the control: it was mapped
    assert owner(found, "dirty")["name"].endswith("written.bin") or found["held"]["dirty"]["peak"] < 16 * MIB


@pytest.mark.doctors
def test_a_reader_of_one_file_holds_all_of_it_as_cache(disk_path: Path) -> None:
    path, size = disk_path / "big.bin", 768 * MIB
    with path.open("wb") as file:
        for _ in range(size // MIB):
            file.write(bytes(MIB))
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    found = judged("dd", f"if={path}", "of=/dev/null", "bs=1M", "status=none")
    assert owner(found, "cache") == {"name": str(path), "bytes": pytest.approx(size, rel=0.05), "what": "file"}
    assert found["held"]["cache"]["end"] >= 0.95 * size
    assert not any("lowtide.open" in line for line in found["verdict"]["fix"])  # dd is no Python


@pytest.mark.doctors
def test_a_hf_dataset_is_mapped_and_its_fix_is_for_arrow(disk_path: Path) -> None:
    pytest.importorskip("datasets", reason="NOT TESTED: HF datasets is not installed")
    found = judged(*python("arrow_dataset", disk_path), seconds="6")
    verdict = found["verdict"]
    assert verdict["grew"] == "mapped", json.dumps(verdict, indent=1)
    assert verdict["who"][0]["name"].endswith(".arrow")
    assert owner(found, "mapped")["bytes"] == pytest.approx(192 * MIB, rel=0.1)
    assert not any("lowtide.open" in line for line in verdict["fix"])
    assert "pyarrow" in verdict["fix"][0]


@pytest.mark.doctors
@pytest.mark.parametrize(
    ("program", "words", "fix"),
    [
        ("node", ("node", str(PLANTED / "heap.js")), "node --heapsnapshot-signal"),
        ("java", ("java", str(PLANTED / "Heap.java")), "jcmd PID GC.class_histogram"),
    ],
)
def test_the_heap_of_another_runtime_gets_that_runtimes_fix(program: str, words: tuple[str, ...], fix: str) -> None:
    if shutil.which(program) is None:
        pytest.skip(f"NOT TESTED: {program} is not installed here")
    found = judged(*words, check=False)
    assert found["verdict"]["grew"] == "anon", json.dumps(found["verdict"], indent=1)
    assert program in found["verdict"]["who"][0]["name"]
    assert any(
        fix in line for line in found["verdict"]["fix"]
    )  # Node.js has its own question first: objects or Buffers
    assert not any("tracemalloc" in line for line in found["verdict"]["fix"])
