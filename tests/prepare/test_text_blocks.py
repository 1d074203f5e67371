"""However inputs are cut, every document comes out once, whole and in order."""

from __future__ import annotations

import gzip
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide.corpus.request import Request
from lowtide.errors import FormatError, ReadError
from lowtide.prepare import encoding
from lowtide.prepare.encoding import BlockEncoder, Recipe
from lowtide.prepare.inputs import sections, text_blocks
from lowtide.prepare.inputs.listing import list_inputs
from lowtide.prepare.tokenizers.vocabulary import BYTES


def documents(path: Path, request: Request, block: int, large: int = 10**9) -> list[bytes]:
    """The documents of a file when it is cut every ``block`` bytes, from the ids of its blocks."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (sections, text_blocks, encoding):
            patch.setattr(module, "TEXT_BLOCK", block)
            patch.setattr(module, "LARGE_DOCUMENT", large)
        patch.setattr(text_blocks, "_LOOK", 8)
        patch.setattr(text_blocks, "_MORE", 5)
        encoder = BlockEncoder(Recipe(request, BYTES, "bytes"))
        found = [
            encoded
            for section in sections.sections_of(list_inputs([str(path)], request), request)
            for encoded in encoder.blocks(section)
        ]
    ids = [number for encoded in found for number in encoded.ids.tolist()]
    text = "".join(chr(number) for number in ids)
    assert not text or text.endswith(chr(256)), "the last document is closed"
    whole = [part.encode("latin-1") for part in text.split(chr(256))[:-1]]
    assert len(whole) == sum(len(encoded.ends) for encoded in found)
    return whole


texts = st.lists(st.binary(max_size=12).map(lambda data: data.replace(b"\r", b"")), max_size=12)


@given(texts, st.integers(1, 40), st.booleans(), st.booleans())
def test_lines_are_the_same_documents_wherever_the_file_is_cut(
    lines: list[bytes], block: int, compressed: bool, ended: bool
) -> None:
    lines = [line.replace(b"\n", b"") for line in lines]
    data = b"\n".join(lines) + (b"\n" if ended and lines else b"")
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / ("a.txt.gz" if compressed else "a.txt")
        path.write_bytes(gzip.compress(data) if compressed else data)
        assert documents(path, Request(lines=True), block) == [line for line in lines if line]


@given(texts, st.sampled_from([b"<|s|>", b"\n\n", b"aa", b"aba", b"|"]), st.integers(1, 40), st.booleans())
def test_separated_documents_are_those_of_split_wherever_the_file_is_cut(
    parts: list[bytes], separator: bytes, block: int, compressed: bool
) -> None:
    data = separator.join(parts)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / ("a.txt.gz" if compressed else "a.txt")
        path.write_bytes(gzip.compress(data) if compressed else data)
        found = documents(path, Request(separator=separator.decode()), block)
        assert found == [part for part in data.split(separator) if part]


@given(st.text(max_size=120), st.integers(16, 40))
def test_a_large_document_is_one_document_and_cut_alike_in_every_container(text: str, block: int) -> None:
    data = text.encode("utf-8", "ignore")
    with tempfile.TemporaryDirectory() as directory:
        plain, packed = Path(directory) / "a.txt", Path(directory) / "a.txt.gz"
        plain.write_bytes(data)
        packed.write_bytes(gzip.compress(data))
        for path in (plain, packed):
            found = documents(path, Request(), block, large=2 * block)
            assert found == ([data] if data else [])


def test_slices_of_a_large_document_end_behind_a_line_or_before_a_character() -> None:
    assert text_blocks.slice_end(b"abc\ndef", 2) == 4
    assert text_blocks.slice_end("aé".encode(), 2) == 3
    assert text_blocks.slice_end(b"abcdef", 6) == 6


def test_a_file_that_changed_since_it_was_planned_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("one\ntwo\n")
    request = Request(lines=True)
    (section,) = sections.sections_of(list_inputs([str(path)], request), request)
    path.write_text("one\ntwo\nthree\n")
    with pytest.raises(ReadError, match="expected the 8 bytes this run was planned with"):
        list(text_blocks.text_blocks(section, request))


def test_text_without_its_separator_does_not_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"x" * 5_000_000)
    monkeypatch.setattr(text_blocks, "LONGEST", 4_500_000)
    request = Request()
    first, _ = sections.sections_of(list_inputs([str(path)], request), request)
    with pytest.raises(FormatError, match="expected documents of at most"):
        list(text_blocks.text_blocks(first, request))
