"""However inputs are cut, every document comes out once, whole and in order."""

from __future__ import annotations

import gzip
import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.prepare.conftest import make_documents

from lowtide.corpus.request import Request
from lowtide.errors import ReadError
from lowtide.prepare.encoding import BlockEncoder, Recipe
from lowtide.prepare.inputs import sections, text_blocks
from lowtide.prepare.inputs.cuts import ANYWHERE, WORDS, cut_after
from lowtide.prepare.inputs.json_lines import LongLine, field_text
from lowtide.prepare.inputs.listing import list_inputs
from lowtide.prepare.tokenizers.encoders import Tokenizers
from lowtide.prepare.tokenizers.vocabulary import BYTES, load_vocabulary


def documents(path: Path, request: Request, block: int, large: int = 10**9) -> list[bytes]:
    """The documents of a file when it is cut every ``block`` bytes, from the ids of its blocks."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (sections, text_blocks):
            patch.setattr(module, "TEXT_BLOCK", block)
            patch.setattr(module, "LARGE_DOCUMENT", large)
        patch.setattr(text_blocks, "_MORE", 5)
        encoder = BlockEncoder(Recipe(request, BYTES, "bytes"))
        found = [
            encoded
            for section in sections.sections_of(list_inputs([str(path)], request), request, ANYWHERE)
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


def test_a_long_document_is_cut_between_words_and_nowhere_else() -> None:
    assert cut_after(b"one two", 1, WORDS) == 3
    assert cut_after("né ж 世。".encode(), 0, WORDS) == len("né ж".encode())
    assert cut_after(b"x, y  \n z'", 3, WORDS) == 4
    assert cut_after(b"...... \n\t ,,,", 0, WORDS) is None


def test_a_file_that_changed_since_it_was_planned_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("one\ntwo\n")
    request = Request(lines=True)
    (section,) = sections.sections_of(list_inputs([str(path)], request), request, ANYWHERE)
    path.write_text("one\ntwo\nthree\n")
    with pytest.raises(ReadError, match="expected the 8 bytes this run was planned with"):
        list(text_blocks.text_blocks(section, request))


JSON_TEXTS = st.text(st.characters(exclude_categories=[]), max_size=60)


@given(JSON_TEXTS, JSON_TEXTS, st.integers(1, 9), st.booleans())
def test_a_line_of_json_in_chunks_gives_the_text_of_the_whole(text: str, other: str, size: int, ascii: bool) -> None:
    content = {"a": [other, {"b": None}], other + "x": -1.5e3, "text": text, "z": True}
    line = json.dumps(content, ensure_ascii=ascii).encode("utf-8", "surrogatepass")
    for errors in ("strict", "replace"):
        chunks = (line[at : at + size] for at in range(0, len(line), size))
        try:
            expected = field_text(line, "text", errors)
        except UnicodeError:
            with pytest.raises(UnicodeError):
                list(LongLine(chunks, "text", errors).texts())
            continue
        found = b"".join(LongLine(chunks, "text", errors).texts())
        if ascii or errors == "strict":
            assert found == expected
        else:  # how many signs replace bytes that are no text depends on where they are cut
            assert found.replace("\ufffd".encode(), b"") == expected.replace("\ufffd".encode(), b"")


@pytest.mark.parametrize(
    "line",
    [
        b'{"text": "a" "b"}',
        b'{"text": "a"',
        b'{"text": "a\\q"}',
        b'["text"]',
        b'{"text": "a"} x',
        b'{"text": 1}',
        b'{"body": "a"}',
        b'{"text": "a", "text": "b"}',
        b'{"text": "a", "b": ]}',
    ],
)
def test_a_long_line_that_cannot_be_used_is_an_error(line: bytes) -> None:
    with pytest.raises((ValueError, KeyError, TypeError)):
        list(LongLine(iter([line[:5], line[5:]]), "text", "strict").texts())


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz", "lines.txt", "a.jsonl", "a.jsonl.gz", "a.parquet"])
def test_ids_of_a_document_in_pieces_are_those_of_the_whole(tmp_path: Path, tokenizer: Path, name: str) -> None:
    text = " ".join(make_documents(60, longest=200)).replace("\n", " ")
    data = json.dumps({"text": text}).encode() if "jsonl" in name else text.encode()
    path = tmp_path / name
    if name == "a.parquet":
        pyarrow = pytest.importorskip("pyarrow", reason="NOT TESTED: Parquet in pieces - pyarrow is not installed")
        __import__("pyarrow.parquet").parquet.write_table(pyarrow.table({"text": ["one", text, "two"]}), path)
    else:
        path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    request = Request(lines=name == "lines.txt")
    vocabulary = load_vocabulary(str(tokenizer))
    whole = Tokenizers(vocabulary).encode([text.encode()])[0].tolist()
    with pytest.MonkeyPatch.context() as patch:
        for module in (sections, text_blocks):
            patch.setattr(module, "TEXT_BLOCK", 1000)
            patch.setattr(module, "LARGE_DOCUMENT", 3000)
        patch.setattr(text_blocks, "_MORE", 512)
        listed = list_inputs([str(path)], request)
        encoder = BlockEncoder(Recipe(request, vocabulary, "gigatoken"))
        found = [
            one
            for section in sections.sections_of(listed, request, vocabulary.features.cut)
            for one in encoder.blocks(section)
        ]
    ids = [number for one in found for number in one.ids.tolist()]
    assert len(found) > 10
    assert sum(one.tally.cut for one in found) == 1
    if name == "a.parquet":
        assert ids[ids.index(0) + 1 :][: len(whole)] == whole
    else:
        assert ids == whole
