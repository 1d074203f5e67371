"""What paths hold, opened alike for every command: arrays, tokens, headerless files with a guess, rows of one axis."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from pathlib import Path

import numpy as np
import pytest

import lowtide
from lowtide.survey.subject import Opening, StatedData, Subject, find, in_rows, opened


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    path = tmp_path / "plain.bin"
    np.random.default_rng(0).integers(0, 50_257, 65_536, dtype=np.uint16).tofile(path)
    return path


def found(path: Path, dtype: str | None = None) -> Subject:
    return find([str(path)], StatedData(dtype))


def test_a_headerless_file_is_opened_by_a_guess_that_stays_marked(plain: Path) -> None:
    guessed, stated = found(plain), found(plain, dtype="uint16")
    assert (guessed.dtype_guessed, stated.dtype_guessed) == (True, False)
    assert guessed.layout == stated.layout
    assert guessed.call(Opening()) == stated.call(Opening()) == f'lowtide.open_tokens("{plain}", dtype="uint16")'


def test_bytes_that_look_like_nothing_are_refused_with_the_librarys_own_words(tmp_path: Path) -> None:
    (tmp_path / "odd.bin").write_bytes(np.random.default_rng(0).bytes(4097))
    with pytest.raises(lowtide.FormatError, match="expected dtype= for a file without a header"):
        found(tmp_path / "odd.bin")


def test_one_axis_of_integers_is_tokens_and_everything_else_an_array(plain: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "floats.npy", np.zeros(100))
    np.save(tmp_path / "table.npy", np.zeros((10, 3), np.int64))
    assert found(plain).kind == "tokens"
    for name in ("floats.npy", "table.npy"):
        subject = found(tmp_path / name)
        assert subject.kind == "array"
        with opened(subject.layout, Opening(strategy="advise", budget="4MiB")) as data:
            assert isinstance(data, lowtide.Array)
            assert (data.plan().strategy, data.plan().budget) == ("advise", 4 << 20)


def test_one_axis_becomes_whole_rows_and_the_rest_is_left_out(plain: Path) -> None:
    rows = in_rows(found(plain).layout, 1000)
    assert rows.shape == (65, 1000)
    with opened(rows, Opening()) as data:
        assert isinstance(data, lowtide.Array)
        assert np.array_equal(data[64], np.fromfile(plain, np.uint16)[64_000:65_000])
    with pytest.raises(ValueError, match=r"expected 70000 items or more for one row, got 65536. Use --row 1024"):
        in_rows(found(plain).layout, 70_000)


def test_what_was_found_cannot_be_changed(plain: Path) -> None:
    with pytest.raises(FrozenInstanceError):
        found(plain).dtype_guessed = False  # type: ignore[misc]


@pytest.mark.parametrize("shape", [(10, 200), (-1, 200), (2000,), (5, 20, 20)])
def test_the_line_to_copy_opens_what_was_asked_about(tmp_path: Path, shape: tuple[int, ...]) -> None:
    path = tmp_path / "x.f32"
    np.arange(2200, dtype="<f4").tofile(path)
    subject = find([str(path)], StatedData("float32", shape))
    with eval(subject.call(Opening())) as data:  # literally, as somebody who pastes it
        assert data.shape == subject.layout.shape
