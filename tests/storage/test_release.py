"""What madvise frees and what it does not: DONTDUMP nothing, DONTNEED mapped pages, neither of them the page cache."""

from __future__ import annotations

import json
import mmap
import os
from pathlib import Path

import numpy as np
import pytest
from tests.storage.processes import answer_of

import lowtide

MIB = 1 << 20


@pytest.fixture
def path(tmp_path: Path) -> Path:
    place = tmp_path / "map.u8"
    with place.open("wb") as file:
        file.write(os.urandom(32 * MIB))
        file.flush()
        os.fsync(file.fileno())
    return place


def test_dontdump_frees_nothing_and_dontneed_frees_what_is_mapped_but_not_the_page_cache(path: Path) -> None:
    script = """
    array = np.memmap(sys.argv[1], np.uint8, "r")
    before = mapped_memory()
    total = int(array[::4096].sum())
    grown = mapped_memory() - before
    array._mmap.madvise(mmap.MADV_DONTDUMP)
    dontdump = mapped_memory() - before
    array._mmap.madvise(mmap.MADV_DONTNEED)
    dontneed = mapped_memory() - before
    cached = page_cache(sys.argv[1]).cached
    assert int(array[::4096].sum()) == total
    print(json.dumps([grown, dontdump, dontneed, cached]))
    """
    grown, dontdump, dontneed, cached = json.loads(answer_of(script, path))
    assert grown >= 31 * MIB
    assert dontdump == grown, "DONTDUMP keeps pages out of core files; it frees none"
    assert dontneed <= 2 * MIB
    assert cached >= 31 * MIB, "the page cache keeps the data"


def test_release_frees_the_mapped_pages_and_says_how_much(path: Path) -> None:
    script = """
    for make in ("whole", "slice", "asarray", "reshaped", "r+"):
        array = np.memmap(sys.argv[1], np.uint8, "r+" if make == "r+" else "r")
        views = {"slice": array[100:5000], "asarray": np.asarray(array), "reshaped": array.reshape(-1, 4096)}
        given = views.get(make, array)
        before = mapped_memory()
        if make == "r+":
            array[7] = 77
        total = int(array[::4096].sum())
        grown = mapped_memory() - before
        released = lowtide.release(given)
        left = mapped_memory() - before
        assert grown >= 31 * MIB and left <= 2 * MIB, (make, grown, left)
        assert released.freed >= 31 * MIB and released.before - released.after == released.freed, (make, released)
        assert released.after <= 2 * MIB, (make, released)
        assert "page cache keeps" in str(released)
        assert int(array[::4096].sum()) == total
        del array, given, views
    assert np.fromfile(sys.argv[1], np.uint8)[7] == 77
    """
    answer_of(script, path)


def test_release_refuses_what_has_no_mapping_and_what_would_lose_changes(path: Path) -> None:
    for odd in (np.zeros(5), [1, 2], "x"):
        with pytest.raises(TypeError, match="memmap"):
            lowtide.release(odd)  # type: ignore[arg-type]
    private = np.memmap(path, np.uint8, "c")
    expected = int(private[5]) ^ 1
    private[5] = expected
    for view in (private, private[2:900], private[:10].reshape(2, 5)):
        with pytest.raises(ValueError, match="copy"):
            lowtide.release(view)
    assert private[5] == expected


def test_release_refuses_memory_that_is_no_file_and_leaves_it_as_it_is(path: Path) -> None:
    batch = next(lowtide.open(path, dtype="uint8", shape=(-1, 4096)).shuffled(16))
    anonymous = np.frombuffer(mmap.mmap(-1, 8192, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), np.uint8)
    anonymous[:] = 7
    for memory in (batch, batch[3:], anonymous):
        kept = memory.copy()
        with pytest.raises(TypeError, match="memmap"):
            lowtide.release(memory)
        assert np.array_equal(memory, kept)
