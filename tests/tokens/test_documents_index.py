"""The index of documents: small, built once by one of many, restartable, and never that of other data."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.tokens.test_documents import corpus, ends_of

import lowtide
from lowtide.reading.documents import boundaries, boundary_index, packing
from lowtide.reading.documents.boundaries import required_marks
from lowtide.reading.documents.document_counts import count_documents

LENGTH = 64


def opened(path: Path, by: str = "eot") -> lowtide.Tokens:
    return lowtide.open_tokens(path, dtype="uint16", **{by: 0})  # type: ignore[arg-type]


def index_of(tokens: lowtide.Tokens) -> boundary_index.BoundaryIndex:
    return boundary_index.boundary_index(tokens, required_marks(tokens))


def kept(path: Path) -> list[str]:
    return sorted(one.name.split("-")[0] for one in (path.parent / ".lowtide").iterdir())


@pytest.fixture
def ids() -> NDArray[np.uint16]:
    return corpus(np.random.default_rng(1), 500_000, share=0.01)


@pytest.fixture
def path(tmp_path: Path, ids: NDArray[np.uint16]) -> Path:
    ids.tofile(tmp_path / "x.bin")
    return tmp_path / "x.bin"


@pytest.mark.parametrize("by", ["eot", "bos"])
def test_it_holds_every_end_and_finds_those_around_any_token(path: Path, ids: NDArray[np.uint16], by: str) -> None:
    ends = ends_of(ids, by)
    with opened(path, by) as tokens:
        index = index_of(tokens)
        assert np.concatenate(list(index.blocks(0, len(ids)))).tolist() == ends.tolist()
        assert len(index) == len(ends)
        starts = np.array([0, 1, 65_535, 65_536, 131_071, 399_999, 499_900, int(ends[7]), int(ends[7]) - 1])
        rows, behind = index.inside(starts, 100)
        found = [(int(row), int(starts[row] + far)) for row, far in zip(rows, behind, strict=True)]
        wanted = [
            (row, int(end)) for row, start in enumerate(starts) for end in ends[(ends > start) & (ends <= start + 100)]
        ]
        assert found == wanted
        part = np.concatenate(list(index.blocks(70_000, 200_001)))
        assert part[:-1].tolist() == ends[(ends > 70_000) & (ends < 200_001)].tolist()
        assert part[-1] == 200_001


@pytest.mark.parametrize("by", ["eot", "bos"])
@pytest.mark.parametrize("at", [65_534, 65_535, 65_536, 65_537])
def test_ends_at_the_borders_of_blocks_and_chunks_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str, at: int
) -> None:
    monkeypatch.setattr(boundaries, "CHUNK", 2 * 65_536)
    monkeypatch.setattr(boundary_index, "WRITTEN", 1)
    ids = np.ones(200_000, np.uint16)
    ids[[at, at + 65_536]] = 0
    ids.tofile(tmp_path / "x.bin")
    with opened(tmp_path / "x.bin", by) as tokens:
        assert np.concatenate(list(index_of(tokens).blocks(0, len(ids)))).tolist() == ends_of(ids, by).tolist()


@pytest.mark.parametrize("mean", [2, 300, 5_000])
def test_it_takes_at_most_3_bytes_per_document(tmp_path: Path, mean: int) -> None:
    ids = np.ones(2_000_000, np.uint16)
    ids[mean - 1 :: mean] = 0
    ids.tofile(tmp_path / "x.bin")
    with opened(tmp_path / "x.bin") as tokens:
        index = index_of(tokens)
        header = 1024
        assert index.kept.nbytes - header <= 3 * len(index)


class StoppedError(Exception):
    pass


def test_an_index_that_was_stopped_goes_on_where_it_was(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boundaries, "CHUNK", 2 * 65_536)
    monkeypatch.setattr(boundary_index, "WRITTEN", 1)

    def stop(done: int, total: int) -> None:
        assert total == 500_000
        if done > 250_000:
            raise StoppedError

    with opened(path) as tokens, pytest.raises(StoppedError):
        tokens.windows(LENGTH, documents=True, progress=stop)
    heard: list[int] = []
    with opened(path) as tokens:
        tokens.windows(LENGTH, documents=True, progress=lambda done, _: heard.append(done))
        assert heard[0] > 300_000
        assert heard[-1] == 500_000
        assert tokens.store.counters.asked < 2 * 300_000
        stopped = np.concatenate(list(index_of(tokens).blocks(0, 500_000)))
    for one in (path.parent / ".lowtide").iterdir():
        one.unlink()
    with opened(path) as tokens:
        assert np.array_equal(stopped, np.concatenate(list(index_of(tokens).blocks(0, 500_000))))


def test_a_packing_that_was_stopped_is_the_same_as_one_that_was_not(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packing, "GROUP_TOKENS", 20_000)
    monkeypatch.setattr(packing, "WRITTEN", 2)

    def packed_rows() -> bytes:
        with opened(path) as tokens:
            windows = tokens.windows(LENGTH, cut="packed")
            return bytes(np.ascontiguousarray(next(windows.batches(len(windows), order="sequential"))[0]))

    def stop(done: int, _: int) -> None:
        if 200_000 < done < 400_000:
            raise StoppedError

    with opened(path) as tokens, pytest.raises(StoppedError):
        tokens.windows(LENGTH, cut="packed", progress=stop)
    assert list((path.parent / ".lowtide").glob("*.partial"))
    stopped = packed_rows()
    assert not list((path.parent / ".lowtide").glob("*.partial"))
    for one in (path.parent / ".lowtide").iterdir():
        one.unlink()
    assert packed_rows() == stopped


RANK = """
import sys, lowtide
heard = []
with lowtide.open_tokens(sys.argv[1], dtype="uint16", eot=0) as tokens:
    windows = tokens.windows(64, cut="packed", progress=lambda done, total: heard.append(done))
    print(len(windows), bool(heard))
"""


def test_of_many_ranks_one_builds_and_the_others_wait(path: Path) -> None:
    ranks = [
        subprocess.Popen([sys.executable, "-c", RANK, str(path)], stdout=subprocess.PIPE, text=True) for _ in range(4)
    ]
    said = [rank.communicate()[0].split() for rank in ranks]
    assert len({rows for rows, _ in said}) == 1
    builders = [built for _, built in said].count("True")
    assert 1 <= builders <= 2  # of the index, and perhaps another one of the packing
    assert kept(path) == ["documents", "packed"]


def test_it_is_built_once_and_shared_by_splits(path: Path) -> None:
    with opened(path) as tokens:
        tokens.windows(LENGTH, documents=True)
    heard: list[int] = []
    with opened(path) as tokens:
        for part in tokens.split(val=0.2):
            part.windows(LENGTH, documents=True, progress=lambda done, _: heard.append(done))
    assert heard == []
    assert kept(path) == ["documents"]


def test_an_index_of_other_data_is_refused_with_the_way_out(path: Path, ids: NDArray[np.uint16]) -> None:
    with opened(path) as tokens:
        tokens.windows(LENGTH, documents=True)
    (mine,) = (path.parent / ".lowtide").iterdir()
    other = path.parent / "other"
    other.mkdir()
    ids[::-1].tofile(other / "x.bin")
    with opened(other / "x.bin") as tokens:
        index = Path(index_of(tokens).kept.path)
    index.write_bytes(mine.read_bytes())
    with (
        opened(other / "x.bin") as tokens,
        pytest.raises(lowtide.FormatError, match=r"expected blocks .*of other data\. Delete it: it will be rebuilt"),
    ):
        tokens.windows(LENGTH, documents=True)


@pytest.mark.parametrize("damage", [b"", b"nothing of ours", b"LOWTIDE\x01\xff\xff\xff\xff{}"])
def test_a_damaged_index_is_refused_with_the_way_out(path: Path, damage: bytes) -> None:
    with opened(path) as tokens:
        index = Path(index_of(tokens).kept.path)
    index.write_bytes(damage)
    with opened(path) as tokens, pytest.raises(lowtide.FormatError, match="Delete it: it will be rebuilt"):
        tokens.windows(LENGTH, documents=True)


def test_a_cut_off_index_is_refused(path: Path) -> None:
    with opened(path) as tokens:
        index = Path(index_of(tokens).kept.path)
    index.write_bytes(index.read_bytes()[:-100])
    with opened(path) as tokens, pytest.raises(lowtide.FormatError, match="expected arrays inside its"):
        tokens.windows(LENGTH, documents=True)


def test_where_the_data_cannot_be_written_beside_the_cache_directory_holds_it(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (path.parent / ".lowtide").write_text("a file where the directory would be")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with opened(path) as tokens:
        tokens.windows(LENGTH, documents=True)
    assert [one.suffix for one in (tmp_path / "cache" / "lowtide").iterdir()] == [".index"]


def test_where_nothing_can_be_written_the_error_names_the_way_out(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (path.parent / ".lowtide").write_text("a file")
    (tmp_path / "cache").write_text("another file")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with opened(path) as tokens, pytest.raises(PermissionError, match="Set XDG_CACHE_HOME to a directory of your own"):
        tokens.windows(LENGTH, documents=True)


@pytest.mark.parametrize("window", [1, 2, 64, 1_000])
def test_counts_are_those_of_the_lengths(path: Path, ids: NDArray[np.uint16], window: int) -> None:
    ends = ends_of(ids, "eot")
    lengths = np.sort(np.diff(ends, prepend=0))
    with opened(path) as tokens:
        found = count_documents(index_of(tokens), 0, len(ids), window)
    inner = ends[ends < len(ids)]
    most = max(1 + int(((inner > end - 1) & (inner < end - 1 + window)).sum()) for end in inner)
    assert (found.documents, found.shortest, found.longest) == (len(lengths), lengths[0], lengths[-1])
    assert found.median == lengths[(len(lengths) - 1) // 2]
    assert found.most_in_window == most


def test_a_median_beyond_65536_tokens_is_exact(tmp_path: Path) -> None:
    ids = np.ones(1_000_000, np.uint16)
    ids[[99_999, 200_000, 340_000]] = 0
    ids.tofile(tmp_path / "x.bin")
    with opened(tmp_path / "x.bin") as tokens:
        found = count_documents(index_of(tokens), 0, len(ids), 64)
    assert (found.shortest, found.median, found.longest) == (100_000, 100_001, 659_999)


@pytest.mark.parametrize("cut", ["stride", "packed"])
def test_a_full_disk_is_a_write_error_with_the_path_and_what_is_free(tmp_path: Path, cut: str) -> None:
    """The size that files may have stands for the disk: the kernel refuses the same way, at the same call."""
    path = tmp_path / "tokens.bin"
    (np.arange(400_000) % 7).astype(np.uint16).tofile(path)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with lowtide.open_tokens(path, dtype="uint16", eot=0) as tokens:
        resource.setrlimit(resource.RLIMIT_FSIZE, (8192, before[1]))
        try:
            with pytest.raises(lowtide.WriteError, match=rf"{tmp_path}/\.lowtide/.*: expected .*, got ") as problem:
                tokens.windows(64, cut=cut, documents=True)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert problem.value.path.startswith(str(tmp_path))
        assert problem.value.free is not None
        assert isinstance(problem.value, OSError)
        windows = tokens.windows(64, cut=cut, documents=True)  # goes on where it stopped, once there is room
        assert len(next(windows.batches(4))) == 3
