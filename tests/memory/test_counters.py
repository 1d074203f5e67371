"""The counters, against a program that holds an exact number of bytes of one kind."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lowtide.memory import KINDS, Sample, process_memory
from lowtide.memory.measure.counters import TreeCounters
from lowtide.memory.measure.open_files import FileSet
from lowtide.memory.measure.pace import Pace
from lowtide.memory.measure.smaps import MappedFile, parse_rollup, parse_smaps

HOLD = Path(__file__).with_name("hold.py")
MIB = 1024**2
SIZE = 48 * MIB
SLACK = 2 * MIB  # the interpreter's own: buffers, page tables, library pages that come and go


@contextmanager
def holding(kind: str, size: int, directory: Path) -> Iterator[int]:
    """The pid of a program that holds ``size`` bytes of ``kind`` and says so."""
    words = [sys.executable, str(HOLD), kind, str(size), str(directory)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n", f"hold.py {kind} failed"
        yield child.pid
        assert child.stdin is not None
        child.stdin.close()


def sample_of(pid: int) -> Sample:
    counters = TreeCounters(pid, launched=True)
    sample = counters.sample()
    assert sample is not None
    return sample


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Sample:
    """The same program holding one page: the negative control, and what the interpreter itself weighs."""
    with holding("anon", 4096, tmp_path_factory.mktemp("empty")) as pid:
        return sample_of(pid)


HELD_AS = {
    "anon": "anon",
    "mapped": "mapped",
    "mapped-dirty": "dirty",
    "cache": "cache",
    "dirty": "dirty",
    "tables": "tables",
    "shmem": "shmem",
    "shmem-mapped": "shmem",
    "shmem-anonymous": "shmem",
}


def grown(held: str, empty: Sample, directory: Path) -> dict[str, int]:
    with holding(held, SIZE, directory) as pid:
        sample = sample_of(pid)
    return {kind: sample.of(kind) - empty.of(kind) for kind in KINDS}


@pytest.mark.parametrize("held", HELD_AS)
def test_bytes_held_on_purpose_are_counted_in_their_kind_and_no_other(
    held: str, empty: Sample, disk_path: Path
) -> None:
    found = grown(held, empty, disk_path)
    for _ in range(5):
        if "dirty" not in held or found["dirty"] > SIZE - SLACK:
            break
        found = grown(held, empty, disk_path)  # the kernel may write dirty pages out at any moment
    for kind in KINDS:
        expected = SIZE if kind == HELD_AS[held] else 0
        assert abs(found[kind] - expected) < SLACK, f"{held}: {kind} is {found[kind]:,}, expected about {expected:,}"


def test_pages_shared_after_fork_count_once_and_copies_count_each(empty: Sample, disk_path: Path) -> None:
    """A parent and two children share SIZE; each child has copied half of it: 1 + 1/2 + 1/2 = 2 times
    SIZE."""
    with holding("workers", SIZE, disk_path) as pid:
        sample = sample_of(pid)
    assert len(sample.processes) == 3
    assert [process.forked for process in sample.processes] == [False, True, True]
    assert abs(sample.anon - empty.anon - 2 * SIZE) < 3 * SLACK
    assert sum(process.rss_anon for process in sample.processes) > 3 * SIZE  # what adding up RSS would say


@pytest.mark.parametrize("held", ["mapped", "cache", "dirty", "shmem"])
def test_bytes_of_files_are_attributed_to_the_file(held: str, disk_path: Path) -> None:
    with holding(held, SIZE, disk_path) as pid:
        largest = sample_of(pid).files[0]
    name = {"dirty": "dirty", "shmem": "hold-"}.get(held, "clean")
    assert name in largest.path
    assert largest.size == SIZE
    assert {"mapped": largest.mapped, "cache": largest.cache, "dirty": largest.dirty}.get(held, SIZE) == SIZE
    assert largest.memory == (held == "shmem")


def test_what_was_cached_before_the_process_opened_the_file_is_found_not_grown(disk_path: Path) -> None:
    path = disk_path / "warm"
    with path.open("wb") as file:
        file.write(os.urandom(SIZE))
        os.fsync(file.fileno())
    program = f"f = open({str(path)!r}, 'rb', buffering=0); f.read(4096); print('ready', flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        sample = sample_of(child.pid)
        child.communicate(b"\n")
    assert sample.cache >= SIZE
    assert sample.found_cache >= SIZE


def test_the_cache_of_a_file_that_may_not_be_asked_is_unknown_and_not_nothing(disk_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("NOT TESTED: becoming another user needs root")
    path = disk_path / "roots.bin"
    path.write_bytes(os.urandom(SIZE))
    program = (
        "import json, os, sys; from lowtide.memory.measure.counters import TreeCounters\n"
        "file = open(sys.argv[1], 'rb', buffering=0); file.read()\n"
        "os.setgid(65534); os.setuid(int(sys.argv[2])); counters = TreeCounters(os.getpid(), children=False)\n"
        "counters.sample(last=True); print(json.dumps(counters.missing))"
    )

    def missing(user: int) -> str:
        words = [sys.executable, "-c", program, str(path), str(user)]
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout

    assert '"cache": "of ' in missing(65534)
    assert "roots.bin" in missing(65534)
    assert '"cache"' not in missing(0)  # the control


def test_one_look_at_one_process_agrees_with_what_the_process_holds(disk_path: Path) -> None:
    with holding("anon", SIZE, disk_path) as pid:
        memory = process_memory(pid)
    assert SIZE < memory.anon < SIZE + 32 * MIB
    assert memory.shmem == 0
    assert 0 < memory.mapped < 64 * MIB
    assert 0 < memory.tables < MIB
    own = process_memory()
    assert own.anon > 0


def test_a_process_that_has_ended_gives_no_sample(disk_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    counters = TreeCounters(child.pid)
    child.wait()
    assert counters.sample() is None
    with pytest.raises(FileNotFoundError):
        process_memory(child.pid)


def test_faults_and_reads_of_children_that_ended_are_kept(disk_path: Path) -> None:
    program = (
        "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()']); print('ready', flush=True); input()"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        counters = TreeCounters(child.pid)
        both = counters.sample()
        while both is None or len(both.processes) < 2:
            both = counters.sample()
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(b"\n")
        child.stdin.flush()
        assert child.stdout.readline() == b"ready\n"
        alone = counters.sample()
        child.communicate(b"\n")
    assert alone is not None
    assert len(alone.processes) == 1
    assert alone.minor_faults >= both.minor_faults


def test_an_expensive_counter_is_read_as_rarely_as_its_share_demands() -> None:
    pace = Pace(share=0.01, every=0.5)
    assert pace.due(0.0)
    pace.paid(0.0, cost=0.1)  # a tenth of a second at 1 %: once in ten
    assert not pace.due(9.9)
    assert pace.due(10.0)
    pace.hurry()
    assert pace.due(2.5)
    assert not pace.due(2.4)


def test_the_first_reads_are_free_so_that_short_programs_are_seen() -> None:
    pace = Pace(share=0.001, every=0.5)
    free = 0
    now = 0.0
    while pace.rest == 0.5:
        pace.paid(now, cost=0.005)
        now, free = now + pace.rest, free + 1
    assert 6 <= free <= 20
    assert pace.rest == pytest.approx(5.0)


SMAPS = """\
00400000-00500000 r--p 00000000 fe:00 11                                 /data/with blanks.bin
Size:               1024 kB
Rss:                 800 kB
Pss:                 400 kB
Pss_Dirty:             0 kB
Shared_Clean:        800 kB
Shared_Dirty:          0 kB
Private_Clean:         0 kB
Private_Dirty:         0 kB
Referenced:          800 kB
Anonymous:             0 kB
VmFlags: rd mr
00600000-00700000 rw-p 00000000 fe:00 12                                 /lib/libx.so
Rss:                 100 kB
Pss:                 100 kB
Shared_Clean:          0 kB
Shared_Dirty:          0 kB
Private_Clean:        60 kB
Private_Dirty:        40 kB
Referenced:          100 kB
Anonymous:            40 kB
NewField:              7 kB
00700000-00800000 rw-s 00000000 00:1b 13                                 /dev/shm/batch (deleted)
Rss:                  64 kB
Pss:                  64 kB
Shared_Dirty:          0 kB
Private_Dirty:        64 kB
Anonymous:             0 kB
00800000-00900000 rw-s 00000000 fe:00 14                                 /data/out.bin
Rss:                 200 kB
Pss:                 100 kB
Shared_Dirty:        100 kB
Private_Dirty:         0 kB
Anonymous:             0 kB
7ff000000000-7ff000100000 rw-p 00000000 00:00 0                          [heap]
Rss:                 512 kB
Pss:                 256 kB
Shared_Dirty:        512 kB
Private_Dirty:         0 kB
Anonymous:           512 kB
"""


def test_smaps_is_summed_by_kind_and_by_file() -> None:
    detail = parse_smaps(SMAPS, frozenset())
    kib = 1024
    assert (detail.anon, detail.mapped, detail.shmem) == ((256 + 40) * kib, (400 + 60 + 100) * kib, 64 * kib)
    by_path = {file.path: file for file in detail.files.values()}
    assert by_path["/data/with blanks.bin"].mapped == 400 * kib
    assert by_path["/data/out.bin"].dirty == 50 * kib
    assert by_path["/lib/libx.so"].dirty == 0
    assert by_path["/dev/shm/batch (deleted)"].memory


def test_a_process_alone_owns_every_file_page_it_maps() -> None:
    detail = parse_smaps(SMAPS, frozenset(), alone=True)
    assert detail.mapped == (800 + 60 + 200) * 1024
    assert detail.anon == (256 + 40) * 1024


def test_a_rollup_names_no_files_and_says_so() -> None:
    detail = parse_rollup("0-1 ---p 0 00:00 0 [rollup]\nRss: 9 kB\nPss_Anon: 5 kB\nPss_File: 3 kB\nPss_Shmem: 1 kB\n")
    assert (detail.anon, detail.mapped, detail.shmem, detail.by_file) == (5120, 3072, 1024, False)


def test_a_file_that_was_cached_before_does_not_use_up_what_another_one_read(disk_path: Path) -> None:
    """Bytes read count once: what they cannot explain is found, and the next file's own reads stay its own."""
    sizes = {"warm": 8 * MIB, "read": 4 * MIB}
    for name, size in sizes.items():
        with (disk_path / name).open("wb") as file:
            file.write(os.urandom(size))
            os.fsync(file.fileno())
    files = FileSet({}, started=2**40)  # everything is older than the watching
    with (disk_path / "warm").open("rb"), (disk_path / "read").open("rb"):
        files.look(os.getpid())
        totals = files.measure({}, 0, fresh=6 * MIB)
    found = {Path(each.path).name: each.found for each in totals.files}
    own = sum(sizes[name] - found[name] for name in sizes)
    assert 5 * MIB < own <= 6 * MIB  # this process has other files open, small ones
    assert all(0 <= found[name] <= sizes[name] for name in sizes)


def test_a_file_that_is_renamed_while_it_is_mapped_goes_by_its_new_name_and_counts_once(disk_path: Path) -> None:
    before, after = disk_path / "rows.incomplete", disk_path / "rows.arrow"
    before.write_bytes(os.urandom(8 * MIB))
    key = (before.stat().st_dev, before.stat().st_ino)
    files = FileSet({}, started=0)
    for path in (before, after):
        mapped = {key: MappedFile(str(path), 8 * MIB, 0, False)}
        files.look_at_mapped(os.getpid(), mapped)
        totals = files.measure(mapped, 0, fresh=0)
        assert [(file.path, file.size) for file in totals.files] == [(str(path), 8 * MIB)]
        if path == before:
            before.rename(after)
    again = files.measure(mapped, 0, fresh=0)  # no look in between: the new name leads to it
    assert [(file.path, file.size) for file in again.files] == [(str(after), 8 * MIB)]


def test_a_mapped_file_that_was_deleted_is_still_of_its_format() -> None:
    mapped = {(1, 2): MappedFile("/gone/rows.arrow (deleted)", 8 * MIB, 0, False)}
    totals = FileSet({}, started=0).measure(mapped, 0, fresh=0)
    assert [(file.path, file.format, file.mapped) for file in totals.files] == [("/gone/rows.arrow", "arrow", 8 * MIB)]


def test_a_clock_that_is_set_back_does_not_hide_what_is_written(
    disk_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counters = TreeCounters(os.getpid(), children=False)
    assert counters.sample() is not None
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() - 7200)
    path = disk_path / "new"
    with path.open("wb") as file:
        file.write(os.urandom(16 * MIB))
        file.flush()
        os.utime(path, (0, 0))
        sample = counters.sample(last=True)
    assert sample is not None
    (seen,) = [each for each in sample.files if each.path == str(path)]
    assert seen.found == 0


def test_dirty_pages_of_a_private_mapping_are_dirty_and_its_own_copies_are_heap(disk_path: Path) -> None:
    text = SMAPS.replace("rw-p 00000000 fe:00 12", "rw-p 00000000 fe:00 15").replace(
        "Private_Dirty:        40 kB", "Private_Dirty:        70 kB"
    )
    (file,) = [each for each in parse_smaps(text, frozenset()).files.values() if each.path == "/lib/libx.so"]
    assert file.dirty == 30 * 1024  # 70 dirty, of them 40 anonymous
    assert file.code
