"""What surrounds a cache directory: hands that cut its files, other users, full and read-only disks, clocks."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from tests.blocks.conftest import Behind

import lowtide
from lowtide.blocks.asking import MAKER
from lowtide.blocks.block_file import BLOCK, NEEDED, BlockFile

NOBODY = 65534


def place_of(behind: Behind) -> Path:
    (place,) = (one for one in (behind.cache / "blocks").iterdir() if one.is_dir())
    return place


def test_data_that_is_cut_while_it_is_fetched_is_made_anew(behind: Behind) -> None:
    """The maker writes on behind what is gone, and so makes the file as long as before."""
    remote = behind.open()
    some = np.random.default_rng(1).permutation(20_000)  # not in order: what follows would be fetched too
    np.testing.assert_array_equal(remote[some], behind.rows[some])
    behind.server.faults.latency = 0.5
    before = behind.server.seen.requests
    fetching = threading.Thread(target=lambda: remote[39_999])
    fetching.start()
    while behind.server.seen.requests == before and fetching.is_alive():
        time.sleep(0.01)
    os.truncate(place_of(behind) / "data", BLOCK)
    fetching.join()
    np.testing.assert_array_equal(remote[some], behind.rows[some])
    np.testing.assert_array_equal(remote[:], behind.rows)


def test_a_full_shuffle_of_small_rows_fetches_each_block_once(behind: Behind) -> None:
    rows = np.random.default_rng(1).integers(0, 256, (6_000, 2048), dtype=np.uint8)
    behind.server.objects["small.u8"] = rows.tobytes()
    remote = lowtide.open(behind.server.url("small.u8"), dtype="uint8", shape=(-1, 2048), cache_dir=behind.cache)
    for epoch in range(2):
        seen = np.concatenate([batch[:, :8] for batch in remote.shuffled(64, seed=1, epoch=epoch)])
        np.testing.assert_array_equal(
            np.sort(seen.view("<u8").ravel()), np.sort(rows[:, :8].copy().view("<u8").ravel())
        )
    fetched = [first + at for _, first, size in behind.server.seen.gets for at in range(0, size, BLOCK)]
    assert sorted(fetched) == list(range(0, rows.nbytes, BLOCK))


def test_a_directory_of_another_user_is_neither_read_nor_written(behind: Behind) -> None:
    if os.geteuid() != 0:
        pytest.skip("NOT TESTED: two users of one cache directory - only root can be both")
    np.testing.assert_array_equal(behind.open()[:], behind.rows)
    MAKER.close()
    behind.cache.chmod(0o1777)
    place = place_of(behind)
    (place / "data").write_bytes(bytes((place / "data").stat().st_size))  # theirs, and not what we would have fetched
    for file in (behind.cache / "blocks", place, *place.iterdir()):
        os.chown(file, NOBODY, NOBODY)
    before = {file: file.stat().st_mtime_ns for file in (behind.cache / "blocks").rglob("*")}
    np.testing.assert_array_equal(behind.open()[:], behind.rows)
    assert {file: file.stat().st_mtime_ns for file in (behind.cache / "blocks").rglob("*")} == before
    assert (behind.cache / f"blocks-{os.geteuid()}").is_dir()


def on_tmpfs(behind: Behind, options: str, program: str) -> str:
    """What a program prints whose cache directory is a tmpfs of its own."""
    behind.cache.mkdir()
    mount = 'mount -t tmpfs -o "$1" tmpfs "$2" && shift 2 && exec "$@"'
    start = ["unshare", "--mount", "sh", "-c", mount, "sh", options, str(behind.cache)]
    if shutil.which("unshare") is None or subprocess.run([*start, "true"], capture_output=True, check=False).returncode:
        pytest.skip("NOT TESTED: a cache directory on a full or read-only disk - nothing can be mounted here")
    code = f"import os, sys, lowtide\naddress, cache = sys.argv[1:3]\n{textwrap.dedent(program)}"
    command = [*start, sys.executable, "-c", code, behind.address, str(behind.cache)]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


REFUSED = """
    open(cache + "/filler", "wb").write(bytes(FILLER))
    try:
        a = lowtide.open(address, cache_dir=cache, disk=DISK)
        print(len(a[:]))
    except OSError as problem:
        print(type(problem).__name__, problem)
"""


@pytest.mark.parametrize("disk", ["'auto'", "'64MiB'"])
def test_a_full_tmpfs_is_told_with_the_way_out(behind: Behind, disk: str) -> None:
    program = REFUSED.replace("FILLER", str(1536 * 1024)).replace("DISK", disk)
    said = on_tmpfs(behind, "size=2m", program)
    assert said.startswith("WriteError")
    assert "cache_dir=" in said


def test_a_tmpfs_with_room_for_few_blocks_is_enough(behind: Behind) -> None:
    program = REFUSED.replace("FILLER", "0").replace("DISK", "'auto'")
    assert on_tmpfs(behind, "size=5m", program) == "40000\n"


def test_a_read_only_directory_is_told_with_the_way_out(behind: Behind) -> None:
    program = REFUSED.replace('open(cache + "/filler", "wb").write(bytes(FILLER))', "pass").replace("DISK", "'auto'")
    said = on_tmpfs(behind, "ro", program)
    assert "expected a directory to keep blocks in" in said
    assert "cache_dir=" in said


def test_stamps_of_a_clock_that_was_ahead_hold_nothing(behind: Behind) -> None:
    """When blocks were needed is counted from the boot; of another one the numbers may lie in the future."""
    rows = np.random.default_rng(1).integers(0, 2**31, (8_192, 1024), dtype=np.int32)  # 32 MiB
    behind.server.objects["big.i32"] = rows.tobytes()
    where = behind.server.url("big.i32")
    remote = lowtide.open(where, dtype="int32", shape=(-1, 1024), cache_dir=behind.cache, disk="16MiB")
    np.testing.assert_array_equal(remote[:2_000], rows[:2_000])
    file = BlockFile(str(place_of(behind)), rows.nbytes)
    os.pwrite(file.hints.number, b"\xf0" * (4 * file.count), NEEDED * 4 * file.count)
    np.testing.assert_array_equal(np.concatenate(list(remote.chunks(1_000))), rows)
