"""``lowtide info --documents``: what it prints, its JSON, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from tests.commands import called
from tests.formats.conftest import TokenFiles

IDS = [1, 2, 0, 3, 0, 4, 5, 6, 7, 0]


def info(*words: object) -> CompletedProcess[str]:
    return called("info", "--documents", *words)


def test_documents_known_by_an_id_are_counted(tmp_path: Path) -> None:
    path = TokenFiles(tmp_path).raw("x.bin", IDS)
    said = info(path, "--dtype", "uint16", "--eot", 0, "--length", 4)
    assert said.returncode == 0, said.stderr
    lines = {line.split("  ")[0].strip(): line for line in said.stdout.splitlines()}
    assert "3, known by eot=0" in lines["documents"]
    assert "shortest 2, median 3, longest 5" in lines["tokens each"]
    assert "at most 3 in 4 tokens" in lines["in a window"]


def test_json_is_one_document_with_the_counts(tmp_path: Path) -> None:
    path = TokenFiles(tmp_path).datatrove("x.ds", [[1, 2, 3], [4], [5, 6, 7, 8]])
    said = info(path, "--json")
    assert said.returncode == 0, said.stderr
    found = json.loads(said.stdout)
    assert found["document_counts"] == {
        "known_by": "offsets",
        "documents": 3,
        "shortest": 1,
        "median": 3,
        "longest": 4,
        "window": 1024,
        "most_in_window": 3,
    }


@pytest.mark.parametrize(
    ("words", "message", "status"),
    [
        ((), "expected a way to tell documents apart", 1),
        (("--eot", 9), "expected the id 9 (eot) as the last token of every document, got none among 10", 1),
        (("--eot", 0, "--length", 0), "--length: expected more than 0, got 0", 2),
    ],
)
def test_bad_input_is_one_line_with_the_way_out(
    tmp_path: Path, words: tuple[object, ...], message: str, status: int
) -> None:
    path = TokenFiles(tmp_path).raw("x.bin", IDS)
    said = info(path, "--dtype", "uint16", *words)
    assert message in said.stderr
    assert said.stderr.count("\n") == 1
    assert said.returncode == status
    assert said.stdout == ""


def test_arrays_have_no_documents(tmp_path: Path) -> None:
    path = TokenFiles(tmp_path).raw("x.f32", range(100), "<f4")
    said = info(path, "--dtype", "float32")
    assert "expected tokens for --documents, got an array of shape (100,)" in said.stderr
    assert said.returncode in (1, 2)
