"""``lowtide info``: what it says of real files, its JSON, its look on a terminal, and bad input in one line."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import shlex
import struct
import subprocess
import sys
import termios
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from tests.commands import called, document_of, refusal_of
from tests.formats.conftest import TokenFiles

import lowtide

INFO = [sys.executable, "-m", "lowtide", "info"]


info, document, refusal = partial(called, "info"), partial(document_of, "info"), partial(refusal_of, "info", code=1)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "table.npy"
    np.save(path, np.arange(3000, dtype=np.float32).reshape(1000, 3))
    return path


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    path = tmp_path / "tokens.bin"
    np.random.default_rng(0).integers(0, 50_257, 65_536, dtype=np.uint16).tofile(path)
    return path


def test_an_array_is_described_with_how_it_would_be_read_and_why(table: Path) -> None:
    found = document(table, "--budget", "8MiB", "--strategy", "advise", "--cache", "drop")
    assert (found["format"], found["kind"], found["dtype"], found["shape"]) == ("npy", "array", "float32", [1000, 3])
    assert (found["nbytes"], found["files"], found["documents"]) == (12_000, 1, None)
    plan = found["plan"]
    assert (plan["strategy"], plan["budget"]) == ("advise", 8 << 20)
    assert plan["rung"] == "madvise(DONTNEED), then fadvise(DONTNEED)"
    assert "strategy='advise' was asked for" in plan["why"][0]
    text = info(table).stdout
    for words in ("NumPy array", "float32", "1,000 x 3", "11.7 KiB in 1 file", "strategy", "because", "budget"):
        assert words in text


def test_the_line_it_prints_opens_the_data(table: Path, tokens: Path) -> None:
    opened = eval(document(table)["open"], {"lowtide": lowtide})
    assert opened.shape == (1000, 3)
    opened = eval(document(tokens, "--dtype", "uint16", "--budget", "4MiB")["open"], {"lowtide": lowtide})
    assert (len(opened), opened.plan().budget) == (65_536, 4 << 20)
    opened = eval(document(tokens, "--dtype", "uint8", "--shape=-1,512")["open"], {"lowtide": lowtide})
    assert opened.shape == (256, 512)


def test_a_name_with_quotes_and_control_characters_is_shown_and_harmless(tmp_path: Path) -> None:
    path = tmp_path / 'a"b\x1b[31m.npy'
    np.save(path, np.arange(100.0))
    assert "\x1b" not in info(path).stdout
    assert len(eval(document(path)["open"], {"lowtide": lowtide})) == 100


def test_tokens_without_a_header_are_described_with_a_dtype_that_is_called_a_guess(tokens: Path) -> None:
    assert re.search(r"^dtype +uint16 \(a guess", info(tokens).stdout, re.MULTILINE)
    guessed = document(tokens)
    assert (guessed["dtype"], guessed["dtype_guessed"]) == ("uint16", True)
    assert 'dtype="uint16"' in guessed["open"]  # opening it asks for the statement
    with pytest.raises(lowtide.FormatError, match="expected dtype="):
        lowtide.open_tokens(tokens)


def test_a_file_that_looks_like_nothing_is_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "noise.bin"
    path.write_bytes(np.random.default_rng(0).bytes(4097))
    line = refusal(path)
    assert "expected --dtype for a file without a header" in line


def test_a_stated_dtype_is_not_called_a_guess(tokens: Path) -> None:
    assert not document(tokens, "--dtype", "uint16")["dtype_guessed"]
    found = document(tokens, "--dtype", "uint16")
    assert (found["kind"], found["format"], found["shape"], found["guess"]) == ("tokens", "nanogpt", [65_536], None)
    assert "65,536" in info(tokens, "--dtype", "uint16").stdout


def test_a_dtype_that_smells_wrong_is_reported_as_a_guess(tokens: Path) -> None:
    found = document(tokens, "--dtype", "uint32")
    assert found["dtype"] == "uint32"  # read as stated all the same
    assert "looks like uint16" in found["guess"]
    text = info(tokens, "--dtype", "uint32").stdout
    assert re.search(r"^guess +looks like uint16 read as uint32", text, re.MULTILINE)


def test_documents_are_counted_where_the_format_knows_them(tmp_path: Path) -> None:
    files = TokenFiles(tmp_path)
    files.megatron("pair", [[1, 2, 3], [4], [5, 6]])
    assert document(tmp_path / "pair.bin")["documents"] == 3
    assert document(tmp_path / "pair")["documents"] == 3  # by the prefix its users know
    files.datatrove("more.ds", [[1, 2], [3, 4, 5]])
    assert document(tmp_path / "more.ds")["documents"] == 2


def test_a_directory_a_glob_and_a_list_are_one_corpus(tmp_path: Path) -> None:
    files = TokenFiles(tmp_path)
    for place in range(3):
        files.llmc(f"shard_{place}.bin", list(range(100)))
    paths = [tmp_path / f"shard_{place}.bin" for place in range(3)]
    for words in ([tmp_path], [tmp_path / "shard_*.bin"], paths):
        found = document(*words)
        assert (found["format"], found["files"], found["shape"]) == ("llm.c", 3, [300])
        assert len(eval(found["open"], {"lowtide": lowtide})) == 300


def test_one_tensor_of_several_is_named(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    entries = {
        "w": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
        "b": {"dtype": "I64", "shape": [4], "data_offsets": [24, 56]},
    }
    header = json.dumps(entries).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(56))
    assert document(path, "--tensor", "w")["shape"] == [2, 3]
    assert eval(document(path, "--tensor", "b")["open"], {"lowtide": lowtide}).shape == (4,)
    assert "2 arrays" in info(path).stdout


def test_an_id_that_ends_documents_is_shown_also_when_it_is_0(tmp_path: Path) -> None:
    np.arange(100, dtype=np.uint16).tofile(tmp_path / "shard.bin")
    manifest = {
        "lowtide": 1,
        "dtype": "uint16",
        "eot": 0,
        "vocab": 100,
        "shards": [{"file": "shard.bin", "tokens": 100}],
    }
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    assert document(tmp_path)["eot"] == 0
    assert re.search(r"^eot +id 0 ends a document$", info(tmp_path).stdout, re.MULTILINE)


def test_a_reader_that_has_seen_enough_is_no_error(table: Path) -> None:
    words = f"{shlex.join([*INFO, str(table)])} | true"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", words], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_without_a_terminal_nothing_is_coloured(table: Path) -> None:
    assert "\x1b" not in info(table).stdout


def test_on_a_terminal_of_80_columns_every_line_but_the_one_to_copy_fits(table: Path) -> None:
    main, other = pty.openpty()
    fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 80, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "NO_COLOR")}
    child = subprocess.Popen([*INFO, str(table)], stdout=other, env={**environment, "TERM": "xterm-256color"})
    os.close(other)
    seen = b""
    try:
        while part := os.read(main, 65_536):
            seen += part
    except OSError:  # how Linux says that the other end is closed
        pass
    os.close(main)
    assert child.wait() == 0
    text = seen.decode()
    assert "\x1b[" in text
    lines = re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines()
    assert len(lines) > 10
    assert all(len(line) <= 80 for line in lines if not line.startswith(("open", "/")))


@pytest.mark.parametrize(
    ("words", "said", "code"),
    [
        (("nowhere.npy",), "nowhere.npy: expected a file, got nothing of that name", 1),
        (("*.nothing",), "expected files that match this pattern", 1),
        (("empty",), "expected token files", 1),
        (("table.npy", "--dtype", "int64"), "expected dtype float32", 1),
        (("table.npy", "--shape", "many"), "--shape: expected whole numbers, got 'many'", 2),
        (("table.npy", "--budget", "lots"), "expected a size such as '64MiB'", 2),
        (("table.npy", "other.npy"), "expected row shape (3,)", 1),
    ],
)
def test_bad_input_is_one_line_and_its_exit_code(words: tuple[str, ...], said: str, code: int, table: Path) -> None:
    (table.parent / "empty").mkdir()
    np.save(table.parent / "other.npy", np.zeros((2, 5), np.float32))
    placed = [str(table.parent / word) if "." in word or word == "empty" else word for word in words]
    assert said in refusal(*placed, code=code)


def test_a_file_of_several_arrays_is_listed_with_what_can_be_read_in_place(tmp_path: Path) -> None:
    path = tmp_path / "both.npz"
    np.savez(path, features=np.zeros((7, 3), np.float32), labels=np.arange(7))
    shown = info(str(path)).stdout
    assert "2 arrays" in shown
    assert "features" in shown
    assert "float32 7 x 3, read in place" in shown
    assert "--tensor features" in shown
    listed = json.loads(info(str(path), "--json").stdout)
    assert [(one["name"], one["shape"], one["in_place"]) for one in listed["members"]] == [
        ("features", [7, 3], True),
        ("labels", [7], True),
    ]
    squeezed = tmp_path / "squeezed.npz"
    np.savez_compressed(squeezed, features=np.zeros((7, 3)), labels=np.arange(7))
    assert "cannot be read in place" in info(str(squeezed)).stdout
    assert "7 x 3" in info(str(path), "--tensor", "features").stdout
