"""The page cache of one file: cachestat, mincore, and dropping."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lowtide.machine import PAGE, drop_page_cache, page_cache, pages
from lowtide.machine.pages import PageCache

SIZE = 3 * 1024**2 + 5  # not a whole number of pages


@pytest.fixture
def written(disk_path: Path) -> Path:
    path = disk_path / "written"
    with path.open("wb") as file:
        file.write(os.urandom(SIZE))
        os.fsync(file.fileno())
    return path


def by_mincore(path: Path, offset: int = 0, length: int = SIZE) -> PageCache:
    with path.open("rb") as file:
        return pages._mincore(file.fileno(), offset, length, str(path))


def whole_pages(size: int) -> int:
    return -(-size // PAGE) * PAGE


def test_a_file_just_written_is_wholly_cached_and_clean_after_fsync(written: Path) -> None:
    cache = page_cache(written)
    assert cache.cached == whole_pages(SIZE)
    assert cache.dirty == cache.writeback == 0


def test_bytes_written_and_not_synced_are_dirty(disk_path: Path) -> None:
    fd = os.open(disk_path / "dirty", os.O_RDWR | os.O_CREAT)
    try:
        os.write(fd, bytes(SIZE))
        cache = page_cache(fd)
    finally:
        os.close(fd)
    if cache.how != "cachestat":
        pytest.skip("NOT TESTED: dirty pages need cachestat (Linux 6.5)")
    assert cache.dirty + cache.writeback == whole_pages(SIZE)


def test_dropping_leaves_nothing_and_reading_brings_back_what_was_read(written: Path) -> None:
    drop_page_cache(written)
    assert page_cache(written).cached == 0
    fd = os.open(written, os.O_RDONLY)
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)  # no read-ahead
        os.pread(fd, PAGE, 4 * PAGE)
        assert page_cache(fd).cached == PAGE
        assert page_cache(fd, 4 * PAGE, PAGE).cached == PAGE
        assert page_cache(fd, 5 * PAGE, PAGE).cached == 0
    finally:
        os.close(fd)


def test_mincore_and_cachestat_agree(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "_WINDOW", 16 * PAGE)  # several windows
    assert by_mincore(written).cached == page_cache(written).cached == whole_pages(SIZE)
    assert by_mincore(written, 5000, 8192).cached == page_cache(written, 5000, 8192).cached
    drop_page_cache(written)
    assert by_mincore(written).cached == 0


def test_asking_about_a_file_brings_none_of_it_in(written: Path) -> None:
    drop_page_cache(written)
    by_mincore(written)
    page_cache(written)
    assert page_cache(written).cached == 0


def test_an_empty_file_has_nothing_cached(tmp_path: Path) -> None:
    path = tmp_path / "empty"
    path.touch()
    assert page_cache(path).cached == 0


def test_a_missing_file_is_file_not_found(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        page_cache(tmp_path / "none")


def test_a_fifo_does_not_block_the_question(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    assert page_cache(tmp_path / "fifo").cached == 0


def test_a_range_beyond_4_gib_of_a_sparse_file_is_counted_apart(tmp_path: Path) -> None:
    fd = os.open(tmp_path / "sparse", os.O_RDWR | os.O_CREAT)
    try:
        os.pwrite(fd, bytes(PAGE), 5 * 1024**3)
        os.fsync(fd)
        assert page_cache(fd, 5 * 1024**3, PAGE).cached == PAGE
        assert page_cache(fd, 0, 5 * 1024**3).cached == 0
    finally:
        os.close(fd)
