"""Document ends come in bounded blocks, counted in tokens over all shards."""

from __future__ import annotations

import struct
import tracemalloc
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lowtide.errors import FormatError, ReadError
from lowtide.formats import Layout, document_ends, token_layout

if TYPE_CHECKING:
    from tests.formats.conftest import TokenFiles


def all_ends(layout: Layout) -> list[int]:
    blocks = document_ends(layout)
    assert blocks is not None
    return [int(end) for block in blocks for end in block]


def test_formats_that_do_not_know_documents_say_none(token_files: TokenFiles) -> None:
    paths = [token_files.llmc("a.bin", [1]), token_files.litgpt("b.bin", [1])]
    for path in paths:
        assert document_ends(token_layout(path)) is None
    assert document_ends(token_layout(token_files.datatrove("c.ds", [[1]], index=False))) is None


def test_ends_run_on_over_shards(token_files: TokenFiles) -> None:
    one = token_files.datatrove("0.ds", [[1, 2, 3], [4]])
    two = token_files.datatrove("1.ds", [[5], [6, 7]])
    assert all_ends(token_layout([one, two])) == [3, 4, 5, 7]
    one = token_files.megatron("0", [[1, 2, 3], [4]], dtype="<i4", code=4)
    two = token_files.megatron("1", [[5], [6, 7], [8]], dtype="<i4", code=4, boundaries=[0, 2, 3])
    assert all_ends(token_layout([one, two])) == [3, 4, 7, 8]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lengths=st.lists(st.integers(0, 5), min_size=1, max_size=30).filter(any), data=st.data())
def test_megatron_documents_of_several_or_no_sequences_end_where_their_last_one_does(
    token_files: TokenFiles, lengths: list[int], data: st.DataObject
) -> None:
    count = len(lengths)
    inner = data.draw(st.lists(st.integers(0, count), max_size=10))
    boundaries = [0, *sorted(inner), count]
    path = token_files.megatron("m", [[7] * length for length in lengths], boundaries=boundaries)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    assert all_ends(token_layout(path)) == [int(starts[b]) for b in boundaries[1:]]


def write_large_megatron(directory: Path, sequences: int, step: int) -> Path:
    """Every sequence one token, every document ``step`` of them."""
    boundaries = np.append(np.arange(0, sequences, step), sequences)
    head = b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, 8, sequences, boundaries.size)
    tables = (np.ones(sequences, "<i4"), np.arange(0, 2 * sequences, 2).astype("<i8"), boundaries.astype("<i8"))
    (directory / "m.idx").write_bytes(head + b"".join(table.tobytes() for table in tables))
    with (directory / "m.bin").open("wb") as file:
        file.truncate(2 * sequences)
    return directory / "m.bin"


@pytest.mark.parametrize("step", [1, 3, 100_000])
def test_an_index_of_twelve_megabytes_is_read_in_less_than_two(tmp_path: Path, step: int) -> None:
    sequences = 600_000
    layout = token_layout(write_large_megatron(tmp_path, sequences, step))
    tracemalloc.start()
    try:
        total, last = 0, 0
        blocks = document_ends(layout)
        assert blocks is not None
        for block in blocks:
            assert block.dtype == np.int64
            assert block.size <= 32_768
            total, last = total + block.size, int(block[-1])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (total, last) == (-(-sequences // step), sequences)
    assert peak < 2 * 2**20


def test_opening_a_large_index_loads_none_of_it(tmp_path: Path) -> None:
    path = write_large_megatron(tmp_path, 600_000, 1)
    tracemalloc.start()
    try:
        token_layout(path)
        assert tracemalloc.get_traced_memory()[1] < 2**18
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("ends", [[3, 2, 6], [3, 9, 6], [2**64 - 1, 4, 6]])
def test_ends_that_step_back_or_leave_the_file_are_refused(token_files: TokenFiles, ends: list[int]) -> None:
    path = token_files.datatrove("0.ds", [[1, 2, 3], [4], [5, 6]])
    Path(f"{path}.index").write_bytes(struct.pack("<3Q", *ends))
    with pytest.raises(FormatError, match="ascending"):
        all_ends(token_layout(path))


def test_megatron_boundaries_out_of_order_are_refused(token_files: TokenFiles) -> None:
    for boundaries in ([0, 3, 1, 3], [0, -1, 3], [0, 9, 3]):
        path = token_files.megatron("m", [[1], [2], [3]], boundaries=boundaries)
        with pytest.raises(FormatError, match="boundaries"):
            all_ends(token_layout(path))


def test_an_index_that_changed_since_it_was_opened_is_a_read_error(token_files: TokenFiles) -> None:
    path = token_files.datatrove("0.ds", [[1], [2]])
    layout = token_layout(path)
    Path(f"{path}.index").write_bytes(bytes(24))
    with pytest.raises(ReadError, match=r"expected 16 bytes.*got 24"):
        all_ends(layout)


def test_ends_ascend_strictly_where_no_document_is_empty(token_files: TokenFiles) -> None:
    ends = all_ends(token_layout(token_files.megatron("m", [[1], [2, 3], [4]])))
    assert all(one < two for one, two in pairwise([0, *ends]))
