"""Files that are alike are told as one pattern, with all their bytes; others stay alone."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lowtide.memory import Trace, judge, watch
from lowtide.memory.patterns import alike, many_alike, named_files, pattern
from lowtide.memory.samples import FileGroup, FileSample, Sample

MIB = 1024**2


def sample(*paths: str, groups: tuple[FileGroup, ...] = ()) -> Sample:
    files = tuple(FileSample(path, MIB, MIB, 0, MIB, 0, "ext4", False) for path in paths)
    return Sample(0.0, 0, len(files) * MIB, 0, 0, 0, 0, files=files, groups=groups)


@pytest.mark.parametrize(
    ("paths", "shared"),
    [
        (["/db7/000001.ldb", "/db7/000123.ldb"], "/db7/*.ldb"),
        (["/x.zarr/c/0/1", "/x.zarr/c/0/2"], "/x.zarr/c/0/*"),
        (["/d/part-0-3fa85f64.f32", "/d/part-1-9bd2ce01.f32"], "/d/part-*-*.f32"),
    ],
)
def test_a_pattern_has_a_star_only_where_names_differ(paths: list[str], shared: str) -> None:
    assert len({alike(path) for path in paths}) == 1
    assert pattern(paths) == shared


def test_few_files_are_named_one_by_one_and_many_are_added_up_with_those_a_sample_does_not_name() -> None:
    few = sample("/d/1.bin", "/d/2.bin", "/d/3.bin")
    assert [each.name for each in named_files(few, many_alike([few]))] == ["/d/1.bin", "/d/2.bin", "/d/3.bin"]
    unnamed = FileGroup("/d/*.bin", 97, mapped=50 * MIB)
    code = FileGroup("library code", 12, mapped=5 * MIB)
    many = sample("/d/1.bin", "/d/2.bin", "/d/3.bin", "/other", groups=(unnamed, code))
    found = {each.name: each.of("mapped") for each in named_files(many, many_alike([many]))}
    assert found == {"/other": MIB, "100 files /d/*.bin": 53 * MIB, "library code": 5 * MIB}


def test_a_hundred_mapped_tables_are_one_owner_with_all_their_bytes(disk_path: Path) -> None:
    size, count = 512 * 1024, 100
    for number in range(count):
        with (disk_path / f"{number:06}.ldb").open("wb", buffering=0) as file:
            file.write(os.urandom(size))
            os.fdatasync(file.fileno())  # not sync(): it would write what other tests keep dirty
    with watch(interval=0.05) as watched:
        maps = []
        for number in range(count):
            with (disk_path / f"{number:06}.ldb").open("rb") as file:
                maps.append(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))
        total = sum(each[place] for each in maps for place in range(0, size, 4096))
    assert total > 0
    verdict = watched.verdict
    assert verdict.grew == "mapped"
    assert verdict.who[0].name == f"{count} files {disk_path}/*.ldb"
    assert verdict.who[0].grew == pytest.approx(count * size, rel=0.05)
    assert verdict.held is not None
    owners = next(each for each in verdict.held.kinds if each.kind == "mapped").owners
    mine = [owner for owner in owners if ".ldb" in owner.name]
    assert [owner.bytes for owner in mine] == [pytest.approx(count * size, rel=0.05)]
    assert verdict.fix == (
        "nothing has to be done: these pages are clean, and the kernel takes them back when it needs room",
    )


WRITES = """
import os, sys, time
with open(sys.argv[1], "wb") as file:
    for _ in range(24):
        file.write(bytes(4 * 2**20)); os.fdatasync(file.fileno()); time.sleep(0.05)
"""


def test_the_cache_of_a_file_it_wrote_is_called_that(disk_path: Path) -> None:
    with (
        subprocess.Popen([sys.executable, "-c", WRITES, str(disk_path / "out.npy")]) as child,
        watch(pid=child.pid) as watched,
    ):
        child.wait()
    verdict = watched.verdict
    assert verdict.grew == "cache"
    assert "page cache of files it wrote" in verdict.headline
    assert not any("lowtide.open" in line for line in verdict.fix)


def test_library_code_that_is_paged_in_is_behind_its_growth_and_no_small_file_beside_it() -> None:
    def at(second: int) -> Sample:
        locale = FileSample("/usr/lib/locale/LC_CTYPE", MIB, 336 * 1024, 0, 1000 * second, 0, "ext4", False)
        code = FileGroup("library code", 60, mapped=6 * second * MIB)
        return Sample(float(second), 0, code.mapped + locale.mapped, 0, 0, 0, 0, files=(locale,), groups=(code,))

    verdict = judge(Trace("python train.py", 0.0, 1.0, samples=tuple(at(second) for second in range(60))))
    assert verdict.grew == "mapped"
    assert [(each.name, each.grew) for each in verdict.who] == [("library code (60 files)", 354 * MIB)]
    assert not any("lowtide" in line or "LC_CTYPE" in line for line in verdict.fix)
