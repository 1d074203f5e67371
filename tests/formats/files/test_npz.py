"""Members of .npz archives that numpy wrote are read where they lie."""

from __future__ import annotations

import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import lowtide
from lowtide.errors import FormatError
from lowtide.formats import Layout, layout_of, members_of, token_layout

ReadBack = Callable[[Layout], npt.NDArray[Any]]


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    rng = np.random.default_rng(5)
    np.savez(
        tmp_path / "x.npz",
        X=rng.normal(size=(300, 7)).astype("f4"),
        F=np.asfortranarray(rng.normal(size=(5, 4))),
        y=rng.integers(0, 9, 300),
        scalar=np.float64(3),
    )
    return tmp_path / "x.npz"


@pytest.mark.parametrize("name", ["X", "X.npy", "F", "y"])
def test_a_stored_member_opens_with_the_same_values(archive: Path, read_back: ReadBack, name: str) -> None:
    layout = layout_of(archive, tensor=name)
    wanted = np.load(archive)[name.removesuffix(".npy")]
    assert (layout.format, layout.dtype, layout.shape) == ("npz", wanted.dtype, wanted.shape)
    assert np.array_equal(read_back(layout), wanted)


@pytest.mark.parametrize("strategy", ["read", "remap", "advise", "map"])
def test_every_strategy_reads_a_member_at_its_odd_offset(archive: Path, strategy: str) -> None:
    wanted = np.load(archive)["X"]
    with lowtide.open(archive, tensor="X", strategy=strategy) as array:
        assert np.array_equal(array[:], wanted)
        assert np.array_equal(np.concatenate([chunk.copy() for chunk in array.chunks(64)]), wanted)
        assert np.array_equal(array[[299, 0, 7]], wanted[[299, 0, 7]])


def test_members_are_listed_with_what_can_be_read(archive: Path) -> None:
    listed = {member.name: member for member in members_of(str(archive))}
    assert list(listed) == ["X", "F", "y", "scalar"]
    assert (listed["X"].dtype, listed["X"].shape, listed["X"].in_place) == ("float32", (300, 7), True)
    assert not listed["scalar"].in_place
    assert "single value" in listed["scalar"].why_not


def test_the_only_member_needs_no_name_and_tokens_find_theirs(tmp_path: Path, archive: Path) -> None:
    np.savez(tmp_path / "one.npz", np.zeros((3, 2)))
    assert layout_of(tmp_path / "one.npz").shape == (3, 2)
    assert token_layout(archive).shape == (300,)
    assert token_layout(archive, tensor="y", dtype="int64").shape == (300,)
    with pytest.raises(FormatError, match=r"the name of one member, got 4 members: 'X', 'F', 'y', 'scalar'"):
        layout_of(archive)
    with pytest.raises(FormatError, match=r"expected dtype int64.*got dtype=uint16"):
        token_layout(archive, dtype="uint16")


def test_a_member_that_does_not_exist_is_told_with_those_that_do(archive: Path) -> None:
    with pytest.raises(FormatError, match=r"expected a member 'Z', got 4 members: 'X', 'F', 'y', 'scalar'\. State"):
        layout_of(archive, tensor="Z")


def test_a_deflated_member_is_refused_with_the_line_that_stores_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read_back: ReadBack
) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez_compressed("x.npz", X=np.zeros((300, 7)))
    with pytest.raises(FormatError, match="got a compressed one") as caught:
        layout_of("x.npz", tensor="X")
    line = str(caught.value).partition("Save it uncompressed: ")[2].rstrip(".")
    exec(line, {"np": np})
    assert layout_of("stored.npz", tensor="X").shape == (300, 7)
    (member,) = members_of("x.npz")
    assert "np.savez" in member.why_not


def test_an_archive_cut_at_any_place_is_a_format_error(archive: Path) -> None:
    whole = archive.read_bytes()
    for length in [*range(0, len(whole), 397), *range(len(whole) - 40, len(whole))]:
        archive.write_bytes(whole[:length])
        with pytest.raises(FormatError, match=r"cut short|empty|no header|zip|file of one array"):
            layout_of(archive, tensor="X")


def test_a_damaged_archive_gives_a_layout_inside_the_file_or_a_format_error(archive: Path) -> None:
    whole = archive.read_bytes()
    rng = np.random.default_rng(11)
    directory = whole.index(b"PK\x01\x02")
    for _ in range(250):
        data = bytearray(whole)
        at = int(rng.integers(directory, len(data)) if rng.random() < 0.7 else rng.integers(0, 200))
        data[at] = int(rng.integers(0, 256))
        archive.write_bytes(data)
        try:
            extent = layout_of(archive, tensor="X").extents[0]
        except FormatError:
            continue
        assert 0 <= extent.offset <= extent.offset + extent.length <= extent.size


def test_a_directory_that_claims_gigabytes_allocates_nothing(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("a.npy", b"x")
    data = (tmp_path / "x.npz").read_bytes()
    end = data.rindex(b"PK\x05\x06")
    with (tmp_path / "x.npz").open("wb") as file:
        file.truncate(3 * 2**30)
        file.seek(3 * 2**30)
        file.write(data[end : end + 12] + (2**31).to_bytes(4, "little") + data[end + 16 :])
    tracemalloc.start()
    try:
        with pytest.raises(FormatError, match="directory of at most"):
            layout_of(tmp_path / "x.npz", tensor="a")
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


def test_an_archive_beyond_4_gib_is_read_at_its_true_offset(tmp_path: Path, read_back: ReadBack) -> None:
    """A sparse first member pushes the second beyond 32 bits, where zip64 fields take over."""
    with zipfile.ZipFile(tmp_path / "big.npz", "w", allowZip64=True) as archive:
        with archive.open("zeros.npy", "w", force_zip64=True) as member:
            np.lib.format.write_array_header_1_0(
                member, {"descr": "<u2", "fortran_order": False, "shape": (2**31 + 2**20,)}
            )
            # The bytes themselves stay a hole: the archive's position is moved on instead of writing zeros.
            hole = 2 * (2**31 + 2**20)
            member._file_size += hole  # type: ignore[attr-defined]
            archive.fp.seek(hole, 1)  # type: ignore[union-attr]
            member._compress_size += hole  # type: ignore[attr-defined]
        with archive.open("ids.npy", "w") as member:
            np.lib.format.write_array(member, np.arange(1000, dtype="u4"))
    layout = layout_of(tmp_path / "big.npz", tensor="ids")
    assert layout.extents[0].offset > 2**32
    assert read_back(layout).tolist() == list(range(1000))
