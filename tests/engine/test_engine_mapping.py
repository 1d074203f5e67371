"""Mappings: the file's bytes, read-only, gone with their last view; shifted, rows map less."""

from __future__ import annotations

import contextlib
import errno
import faulthandler
import gc
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.engine.asked import PYTHON, native, noise, opened

import lowtide
from lowtide.engine import FAULT_AROUND, FAULT_MOST, Engine, Runs

SIZE = 64 << 20
LARGE = 2 << 20


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Written in large pieces and read through once, as the page cache of a warm corpus is."""
    path = tmp_path_factory.mktemp("mapping") / "noise.dat"
    content = np.random.default_rng(0).bytes(4 << 20)
    with path.open("wb") as target:
        for _ in range(SIZE // len(content)):
            target.write(content)
        target.flush()
        os.fsync(target.fileno())
    return path


@pytest.fixture
def fd(file: Path) -> Iterator[int]:
    with opened(file) as fd:
        yield fd


@pytest.fixture(params=["native", "python"])
def engine(request: pytest.FixtureRequest) -> Engine:
    return native() if request.param == "native" else PYTHON


def address(mapping: Any) -> int:
    return int(np.frombuffer(mapping, np.uint8).__array_interface__["data"][0])


def entry(at: int) -> dict[str, str] | None:
    """What /proc/self/smaps says about the mapping that begins here."""
    found: dict[str, str] | None = None
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            if found is not None:
                return found
            found = {} if int(line.split("-")[0], 16) == at else None
        elif found is not None:
            name, _, value = line.partition(":")
            found[name] = value.strip()
    return found


def mapped_bytes(at: int) -> int:
    found = entry(at)
    assert found is not None
    return int(found["Rss"].split()[0]) << 10


@pytest.mark.parametrize("shifted", [False, True])
@pytest.mark.parametrize("scattered", [False, True])
def test_a_mapping_is_the_bytes_of_the_file_and_read_only(
    engine: Engine, shifted: bool, scattered: bool, file: Path, fd: int
) -> None:
    mapping: Any = engine.mapping(fd, SIZE - 100, shifted, scattered)
    view = memoryview(mapping)
    assert view.readonly and view.nbytes == SIZE - 100 and view.format == "B"
    assert bytes(view[12345:13000]) == os.pread(fd, 655, 12345)
    with pytest.raises(TypeError):
        view[0] = 1
    assert not np.frombuffer(mapping, np.uint16).flags.writeable
    into = bytearray(300)
    assert engine.fill_mapped(mapping, Runs(-1, np.array([5, 5000, SIZE - 200]), 100), into) is None
    assert into == os.pread(fd, 100, 5) + os.pread(fd, 100, 5000) + os.pread(fd, 100, SIZE - 200)
    assert engine.fill_mapped(mapping, Runs(-1, np.array([SIZE - 150]), 100), into) == ("read", 0, 50, 0)
    flags = (entry(address(mapping)) or {})["VmFlags"].split()
    assert "dd" in flags and ("rr" in flags) == scattered and "wr" not in flags
    assert (address(mapping) % LARGE == 4096) == shifted or not shifted


def test_runs_of_any_length_come_in_the_order_asked_up_to_the_first_outside(
    engine: Engine, file: Path, fd: int
) -> None:
    mapping: Any = engine.mapping(fd, SIZE, False, False)
    random = np.random.default_rng(3)
    lengths = random.choice([0, 1, 63, 64, 65, 2050, 8191, 8192, 8193, 70_000], 700)
    offsets = random.integers(0, SIZE - lengths + 1)
    offsets[:3], lengths[:3] = (SIZE - 1, SIZE - 70_000, 0), (1, 70_000, 8193)
    into, content = bytearray(int(lengths.sum())), file.read_bytes()
    wanted = b"".join(content[at : at + size] for at, size in zip(offsets.tolist(), lengths.tolist(), strict=True))
    assert engine.fill_mapped(mapping, Runs(-1, offsets, lengths), into) is None
    assert into == wanted
    offsets[650], lengths[650] = SIZE + 5, lengths[650] or 7
    offsets[690] = 1 << 60
    into = bytearray(int(lengths.sum()))
    assert engine.fill_mapped(mapping, Runs(-1, offsets, lengths), into) == ("read", 650, 0, 0)
    before = int(lengths[:650].sum())
    assert into[:before] == wanted[:before]


def numbers_listed(engine: Engine, mapping: Any, count: int) -> int:
    """Numbers that ``tolist`` made Python numbers of while that many runs were copied."""
    sizes: list[int] = []

    def note(_: object, event: str, call: Any) -> None:
        if event == "c_call" and call.__name__ == "tolist":
            sizes.append(call.__self__.size)

    runs, into = Runs(-1, np.arange(count) * 16, 16), bytearray(count * 16)
    sys.setprofile(note)
    try:
        assert engine.fill_mapped(mapping, runs, into) is None
    finally:
        sys.setprofile(None)
    assert into == memoryview(mapping)[: count * 16]
    return sum(sizes)


def test_twice_as_many_runs_of_a_mapping_are_twice_the_work(engine: Engine, fd: int) -> None:
    mapping: Any = engine.mapping(fd, SIZE, False, True)
    assert numbers_listed(engine, mapping, 2000) == 2 * numbers_listed(engine, mapping, 1000)


def test_a_mapping_goes_with_its_last_view(engine: Engine, fd: int) -> None:
    mapping: Any = engine.mapping(fd, SIZE, True, False)
    at = address(mapping)
    view = np.frombuffer(mapping, np.uint8)[100:200]
    del mapping
    gc.collect()
    assert entry(at) is not None and view.tobytes() == os.pread(fd, 100, 100)
    del view
    gc.collect()
    assert entry(at) is None


def test_what_was_mapped_is_taken_back_at_once(engine: Engine, fd: int) -> None:
    mapping: Any = engine.mapping(fd, SIZE, True, True)
    at = address(mapping)
    assert np.frombuffer(mapping, np.uint8)[::4096].sum() > 0
    assert mapped_bytes(at) > SIZE // 2
    mapping.take_back(0, SIZE)
    assert mapped_bytes(at) == 0
    assert bytes(memoryview(mapping)[:10]) == os.pread(fd, 10, 0)


def per_row(engine: Engine, fd: int, *, shifted: bool) -> float:
    """Bytes that a row touched at random maps, each in a mapping with nothing mapped."""
    mapping: Any = engine.mapping(fd, SIZE, shifted, True)
    at, rows = address(mapping), np.frombuffer(mapping, np.uint8)
    counts = []
    for offset in np.random.default_rng(1).integers(0, SIZE // 4096, 64) * 4096:
        mapping.take_back(0, SIZE)
        assert rows[offset] >= 0
        counts.append(mapped_bytes(at))
    assert max(counts) <= FAULT_MOST, f"a fault mapped {max(counts)} bytes"
    return float(np.mean(counts))


@pytest.mark.slow
def test_rows_touched_at_random_map_far_less_in_a_shifted_mapping(engine: Engine, fd: int) -> None:
    for offset in range(0, SIZE, 4096):
        os.pread(fd, 4096, offset)
    shifted, plain = per_row(engine, fd, shifted=True), per_row(engine, fd, shifted=False)
    if plain <= 8 * FAULT_AROUND:
        pytest.skip(
            "NOT TESTED: that shifting keeps large folios from being mapped whole - the page cache of this file system "
            f"has few here: {plain / 1024:.0f} KiB per row unshifted, {shifted / 1024:.0f} KiB shifted"
        )
    assert shifted < plain / 2


def test_what_cannot_be_mapped_is_refused(engine: Engine, fd: int, tmp_path: Path) -> None:
    with pytest.raises((OSError, ValueError), match=r"mapping: expected a file that can be mapped|size: expected"):
        of_a_pipe(engine)
    for size in (SIZE + 1, 2**62, 2**63 - 1):
        with pytest.raises(ValueError, match="size: expected"):
            engine.mapping(fd, size, True, False)
    with pytest.raises(OSError) as caught:
        engine.mapping(1000, 4096, False, False)
    assert caught.value.errno == errno.EBADF
    noise(tmp_path / "small", 100)
    with opened(tmp_path / "small") as small:
        assert bytes(memoryview(engine.mapping(small, 100, True, True))) == os.pread(small, 100, 0)  # type: ignore[arg-type]
    before = len(Path("/proc/self/maps").read_text().splitlines())
    for _ in range(50):
        with pytest.raises((OSError, ValueError)):
            of_a_pipe(engine)
    assert len(Path("/proc/self/maps").read_text().splitlines()) <= before + 2


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["map", "remap", "advise"])
def test_a_file_cut_under_threads_that_copy_from_its_mapping_is_at_worst_sigbus(
    engine: Engine, strategy: str, tmp_path: Path
) -> None:
    """The documented end. (faulthandler, which walks the frames of running threads, may turn it into SIGSEGV.)"""
    ends = []
    for turn in range(4):
        path = tmp_path / f"{turn}.npy"
        np.save(path, np.zeros((50_000, 8), np.float32))
        child = os.fork()
        if child == 0:
            faulthandler.disable()
            array = lowtide.open(path, strategy=strategy, engine=engine.name, budget="16MiB")

            def read(array: Any = array) -> None:
                with contextlib.suppress(lowtide.LowtideError):
                    while True:
                        for _ in array.shuffled(512, seed=1):
                            pass

            threads = [threading.Thread(target=read, daemon=True) for _ in range(4)]
            for thread in threads:
                thread.start()
            time.sleep(0.02 * (turn + 1))
            os.truncate(path, 1000)
            for thread in threads:
                thread.join(60)
            os._exit(0)
        ends.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    assert set(ends) <= {0, -signal.SIGBUS}, ends


def of_a_pipe(engine: Engine) -> None:
    near, far = os.pipe()
    try:
        engine.mapping(near, 4096, True, False)
    finally:
        os.close(near)
        os.close(far)
