"""Columns of token ids in Parquet and Arrow files become plain ids, once, restartable, checked."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import lowtide
from lowtide.errors import FormatError
from lowtide.formats import Layout, column_layout, document_ends
from lowtide.formats.columns.id_columns import MOST_IDS, blocks, find_column
from lowtide.storage.own_files import user_cache

pa = pytest.importorskip(
    "pyarrow", reason="NOT TESTED: columns of ids, because pyarrow is not installed (pip install lowtide[parquet])"
)
feather, ipc, pq = (pytest.importorskip(f"pyarrow.{name}") for name in ("feather", "ipc", "parquet"))

ReadBack = Callable[[Layout], npt.NDArray[Any]]
DOCUMENTS: list[list[int]] = [[], [1, 2, 3], [4], [], [50_256, 5, 6, 7], [8] * 20, []]


def table(documents: list[Any], type: Any = None) -> Any:
    ids = pa.array(documents, type or pa.list_(pa.int32()))
    return pa.table({"text": [f"text {k}" for k in range(len(documents))], "input_ids": ids})


def write(path: Path, content: Any, **more: Any) -> Path:
    """As the suffix says: Parquet, Arrow file, Feather, or (.stream.arrow) the stream that datasets writes."""
    if path.suffix == ".parquet":
        pq.write_table(content, path, **more)
    elif path.suffix == ".feather":
        feather.write_feather(content, str(path), **more)
    else:
        make = ipc.new_stream if ".stream" in path.name else ipc.new_file
        with make(str(path), content.schema) as sink:
            sink.write_table(content, max_chunksize=2)
    return path


def ends(layout: Layout) -> list[int]:
    return [int(end) for block in document_ends(layout) or () for end in block]


NAMES = ["t.parquet", "t.arrow", "t.stream.arrow", "t.feather"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["list", "large_list"])
def test_one_row_is_one_document_in_every_kind_of_file(
    tmp_path: Path, read_back: ReadBack, name: str, kind: str
) -> None:
    make = {"list": pa.list_, "large_list": pa.large_list}[kind]
    path = write(tmp_path / name, table(DOCUMENTS, make(pa.int32())))
    layout = column_layout(path, "input_ids", cache_dir=tmp_path / "cache")
    assert layout.dtype == np.int32
    assert read_back(layout).tolist() == [token for document in DOCUMENTS for token in document]
    assert ends(layout) == np.cumsum([len(document) for document in DOCUMENTS]).tolist()


def test_rows_of_a_fixed_length_are_documents_too(tmp_path: Path, read_back: ReadBack) -> None:
    path = write(tmp_path / "t.parquet", table([[1, 2], [3, 4], [5, 6]], pa.list_(pa.uint16(), 2)))
    layout = column_layout(path, "input_ids", cache_dir=tmp_path)
    assert (read_back(layout).tolist(), ends(layout)) == ([1, 2, 3, 4, 5, 6], [2, 4, 6])


def test_row_groups_and_files_run_on(tmp_path: Path, read_back: ReadBack) -> None:
    rng = np.random.default_rng(4)
    files = [[rng.integers(0, 60_000, rng.integers(0, 50)).tolist() for _ in range(300)] for _ in range(3)]
    for k, documents in enumerate(files):
        write(tmp_path / f"{k}.parquet", table(documents), row_group_size=70)
    wanted = [document for documents in files for document in documents]
    for source in (tmp_path, str(tmp_path / "*.parquet"), [tmp_path / f"{k}.parquet" for k in range(3)]):
        layout = column_layout(source, "input_ids", dtype="uint16", cache_dir=tmp_path / "cache")
        assert read_back(layout).tolist() == [token for document in wanted for token in document]
        assert ends(layout) == np.cumsum([len(document) for document in wanted]).tolist()


@pytest.mark.parametrize("name", ["t.parquet", "t.arrow"])
def test_documents_longer_than_a_block_end_where_they_end(tmp_path: Path, read_back: ReadBack, name: str) -> None:
    lengths = [0, MOST_IDS, 0, 2 * MOST_IDS + 3, MOST_IDS - 3, 0, 5, 0]
    path = write(tmp_path / name, table([np.full(length, k) for k, length in enumerate(lengths)]))
    layout = column_layout(path, "input_ids", dtype="uint8", cache_dir=tmp_path)
    assert np.array_equal(read_back(layout), np.repeat(np.arange(len(lengths)), lengths))
    assert ends(layout) == np.cumsum(lengths).tolist()


def test_open_tokens_gives_batches_and_documents(tmp_path: Path) -> None:
    write(tmp_path / "t.parquet", table([[k] * 10 for k in range(20)]))
    source, cache = str(tmp_path / "*.parquet"), tmp_path / "cache"
    with lowtide.open_tokens(source, column="input_ids", dtype="uint16", eot=3, cache_dir=cache) as tokens:
        assert (len(tokens), tokens.dtype, tokens.eot) == (200, np.dtype("u2"), 3)
        blocks = tokens.documents()
        assert blocks is not None
        assert np.concatenate(list(blocks)).tolist() == list(range(10, 201, 10))
        x, y = next(tokens.batches(2, length=16, order="sequential"))
        assert np.array_equal(x[0][1:], y[0][:-1])
    with pytest.raises(ValueError, match="expected column= or tensor="):
        lowtide.open_tokens(source, column="input_ids", tensor="x")


def test_a_column_is_decoded_once_and_again_only_when_the_file_changes(tmp_path: Path, read_back: ReadBack) -> None:
    path = write(tmp_path / "t.parquet", table(DOCUMENTS))

    def opened(source: Path) -> Layout:
        return column_layout(source, "input_ids", cache_dir=tmp_path / "cache")

    def decoded() -> set[tuple[int, int]]:
        """Every decode that was finished: each writes a new done.json."""
        found = [done.stat() for done in (tmp_path / "cache").rglob("done.json")]
        return {(one.st_ino, one.st_mtime_ns) for one in found}

    first = opened(path)
    once = decoded()
    assert len(once) == 1
    assert opened(path).extents == first.extents
    other = tmp_path / "elsewhere"
    other.mkdir()
    shutil.copyfile(path, other / "u.parquet")  # another name, place and time: the same file
    assert opened(other / "u.parquet").extents == first.extents
    assert decoded() == once
    write(path, table([[9, 9]]))
    assert read_back(opened(path)).tolist() == [9, 9]
    assert len(decoded() - once) == 1


@pytest.mark.parametrize("damage", ["cut", "changed", "gone", "no done.json", "nonsense"])
def test_damaged_ids_are_decoded_again(tmp_path: Path, read_back: ReadBack, damage: str) -> None:
    path = write(tmp_path / "t.parquet", table(DOCUMENTS))
    first = column_layout(path, "input_ids", cache_dir=tmp_path / "cache")
    wanted = read_back(first).tolist()
    ids = Path(first.extents[0].path)
    if damage == "cut":
        os.truncate(ids, 8)
    elif damage == "changed":
        ids.write_bytes(bytes(ids.stat().st_size))
    elif damage == "gone":
        ids.unlink()
    elif damage == "no done.json":
        (ids.parent / "done.json").unlink()
    else:
        (ids.parent / "done.json").write_bytes(b"[1")
    assert read_back(column_layout(path, "input_ids", cache_dir=tmp_path / "cache")).tolist() == wanted


def test_a_killed_decode_goes_on_where_it_was(tmp_path: Path, read_back: ReadBack) -> None:
    """The child is killed behind the first block of its thirteenth row group, so that the moment is certain."""
    documents = [[k % 60_000] * 500 for k in range(400)]
    path = write(tmp_path / "t.parquet", table(documents), row_group_size=20)
    script = (
        "import os, signal, sys, lowtide.formats.columns.decoded as d\n"
        "d._SAVED_EVERY = 1\n"
        "def blocks(column, first, every=d.blocks):\n"
        "    for block in every(column, first):\n"
        "        yield block\n"
        "        if block.piece == 12:\n"
        "            os.kill(os.getpid(), signal.SIGKILL)\n"
        "d.blocks = blocks\n"
        f"d.column_layout({str(path)!r}, 'input_ids', cache_dir={str(tmp_path / 'cache')!r})"
    )
    ended = subprocess.run([sys.executable, "-c", script], check=False)
    assert ended.returncode == -signal.SIGKILL
    (progress,) = (tmp_path / "cache").rglob("progress.json")
    at = json.loads(progress.read_text())
    assert at == {"pieces": 12, "tokens": 12 * 20 * 500, "documents": 12 * 20}
    with (progress.parent / "tokens.bin").open("ab") as file:
        file.write(b"half a block that never counted")
    # What was done is not done again: a mark inside it survives.
    with (progress.parent / "tokens.bin").open("r+b") as file:
        file.write((77).to_bytes(4, "little"))
    layout = column_layout(path, "input_ids", cache_dir=tmp_path / "cache")
    wanted = [token for document in documents for token in document]
    assert read_back(layout).tolist() == [77, *wanted[1:]]
    assert ends(layout) == list(range(500, 400 * 500 + 1, 500))


@pytest.mark.slow
def test_of_several_processes_one_decodes_and_the_others_wait(tmp_path: Path) -> None:
    path = write(tmp_path / "t.parquet", table([[1] * 1000] * 2000))
    script = (
        "import lowtide.formats.columns.decoded as d\n"
        "made = []\n"
        "def blocks(*words, every=d.blocks):\n"
        "    made.append(words)\n"
        "    return every(*words)\n"
        "d.blocks = blocks\n"
        f"d.column_layout({str(path)!r}, 'input_ids', cache_dir={str(tmp_path / 'cache')!r})\n"
        "print(len(made))"
    )
    processes = [subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) for _ in range(3)]
    assert sorted(int(process.communicate(timeout=200)[0]) for process in processes) == [0, 0, 1]


MEMORY = """
import pyarrow.compute, pyarrow.parquet, lowtide, pathlib, resource
import pyarrow
from lowtide.formats import column_layout
def peak():
    return int(next(l for l in open("/proc/self/status") if l.startswith("VmHWM")).split()[1]) * 1024
column_layout({small!r}, "input_ids", cache_dir={cache!r})
before = peak()
{work}
print(peak() - before)
"""


@pytest.mark.slow
def test_one_row_group_of_50_mib_is_decoded_in_less_than_32(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    ids = pa.array(rng.integers(0, 2**31, 12_500 * 1000).astype("i4"))
    lists = pa.ListArray.from_arrays(pa.array(np.arange(0, ids.__len__() + 1, 1000, dtype="i4")), ids)
    path, small = tmp_path / "t.parquet", write(tmp_path / "small.parquet", table(DOCUMENTS))
    pq.write_table(pa.table({"input_ids": lists}), path, row_group_size=10**9, use_dictionary=False)
    del ids, lists
    assert pq.ParquetFile(path).metadata.num_row_groups == 1
    cache = str(tmp_path / "cache")

    def grown(work: str) -> int:
        script = MEMORY.format(small=str(small), cache=cache, work=work)
        return int(subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout)

    assert grown(f"column_layout({str(path)!r}, 'input_ids', cache_dir={cache!r})") < 32 * 2**20
    assert grown(f"t = pyarrow.parquet.read_table({str(path)!r})") > 40 * 2**20  # what loading the column takes


def test_the_cache_is_where_xdg_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    path = write(tmp_path / "t.parquet", table(DOCUMENTS))
    assert column_layout(path, "input_ids").extents[0].path.startswith(str(tmp_path / "xdg" / "lowtide"))
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/is/ignored")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert user_cache() == tmp_path / "home" / ".cache" / "lowtide"


@pytest.mark.parametrize("name", NAMES)
def test_a_column_that_does_not_exist_is_told_with_those_that_do(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / name, table(DOCUMENTS))
    with pytest.raises(FormatError, match=r"expected a column 'ids', got 'text', 'input_ids'\. State"):
        column_layout(path, "ids", cache_dir=tmp_path)
    with pytest.raises(FormatError, match="expected a list of integers in each row, got string"):
        column_layout(path, "text", cache_dir=tmp_path)


def test_ids_that_do_not_fit_the_stated_dtype_are_refused_with_their_place(tmp_path: Path) -> None:
    path = write(tmp_path / "t.parquet", table([[1, 2], [70_000, 3]]))
    with pytest.raises(FormatError, match=r"expected ids from 0 to 65535 for dtype=uint16, got 70000 at token 2"):
        column_layout(path, "input_ids", dtype="uint16", cache_dir=tmp_path)
    path = write(tmp_path / "t.parquet", table([[1, -100]]))
    with pytest.raises(FormatError, match="got -100 at token 1"):
        column_layout(path, "input_ids", dtype="uint16", cache_dir=tmp_path)
    with pytest.raises(ValueError, match="expected integers for tokens"):
        column_layout(path, "input_ids", dtype="float32", cache_dir=tmp_path)


def test_a_missing_id_is_refused_and_a_missing_row_is_an_empty_document(tmp_path: Path, read_back: ReadBack) -> None:
    path = write(tmp_path / "t.parquet", table([[1, None], [2]]))
    with pytest.raises(FormatError, match="1 missing in piece 0"):
        column_layout(path, "input_ids", cache_dir=tmp_path)
    path = write(tmp_path / "t.parquet", table([[1], None, [2, 3]]))
    layout = column_layout(path, "input_ids", cache_dir=tmp_path)
    assert (read_back(layout).tolist(), ends(layout)) == ([1, 2, 3], [1, 1, 3])


@pytest.mark.parametrize("name", NAMES)
def test_a_file_cut_short_is_a_format_error(tmp_path: Path, name: str) -> None:
    rng = np.random.default_rng(2)
    path = write(tmp_path / name, table([rng.integers(0, 9999, 100).tolist() for _ in range(50)]))
    whole = path.read_bytes()
    for length in (3, 12, 300, len(whole) // 2):
        path.write_bytes(whole[:length])
        with pytest.raises(FormatError, match=r"cut short|cannot|expected a Parquet"):
            column_layout(path, "input_ids", cache_dir=tmp_path / str(length))


def test_a_damaged_page_is_a_format_error_and_leaves_nothing_believed(tmp_path: Path) -> None:
    path = write(tmp_path / "t.parquet", table([list(range(100))] * 50), compression="gzip")
    data = bytearray(path.read_bytes())
    data[200:1200] = os.urandom(1000)
    path.write_bytes(data)
    for _ in range(2):
        with pytest.raises(FormatError):
            column_layout(path, "input_ids", cache_dir=tmp_path / "cache")
    assert not list((tmp_path / "cache").rglob("done.json"))


FUZZ = """
import random, sys
from pathlib import Path
from lowtide.errors import FormatError
from lowtide.formats.columns.id_columns import blocks, find_column
sound, path, first, rounds = Path(sys.argv[1]).read_bytes(), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
for number in range(first, rounds):
    draw, data = random.Random(number), bytearray(sound)
    for _ in range(draw.randrange(1, 4)):  # most of a small file is its footer
        at = draw.randrange(4, len(data) - 8)
        data[at] = draw.choice((0, 0x7F, 0x80, 0xFF, draw.randrange(256), data[at] ^ 1 << draw.randrange(8)))
    Path(path).write_bytes(data)
    try:
        for block in blocks(find_column(path, "input_ids")):
            block.ends.sum()
        print(number, "read", flush=True)
    except FormatError:
        print(number, "refused", flush=True)
"""


@pytest.mark.parametrize("name", ["t.parquet", "t.arrow"])
def test_thousands_of_damaged_files_are_a_format_error_or_ids(tmp_path: Path, name: str) -> None:
    """In processes of their own: pyarrow ends the interpreter (SIGABRT) on a few of them, which no caller can catch."""
    sound, rounds, ended = write(tmp_path / name, table(DOCUMENTS)), 3000, 0
    said: list[str] = []
    while len(said) + ended < rounds:
        words = [
            sys.executable,
            "-c",
            FUZZ,
            str(sound),
            str(tmp_path / f"bad-{name}"),
            str(len(said) + ended),
            str(rounds),
        ]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert done.returncode in (0, -signal.SIGABRT), done.stderr[-2000:]
        said += done.stdout.splitlines()
        ended += done.returncode != 0
    assert ended < rounds // 200
    assert sum(line.endswith("refused") for line in said) > rounds // 10


@pytest.mark.parametrize("name", NAMES)
def test_a_name_that_is_no_text_is_a_format_error(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / name, table(DOCUMENTS))
    path.write_bytes(path.read_bytes().replace(b"input_ids", b"inp\xff\xfeids"))
    with pytest.raises(FormatError):
        list(blocks(find_column(str(path), "input_ids")))


def test_train_and_val_columns_together_are_refused(tmp_path: Path) -> None:
    for name in ("train-00000.parquet", "validation-00000.parquet"):
        write(tmp_path / name, table(DOCUMENTS))
    with pytest.raises(FormatError, match="train and val"):
        column_layout(str(tmp_path / "*.parquet"), "input_ids", cache_dir=tmp_path)


def test_what_has_no_columns_is_told_so(tmp_path: Path) -> None:
    np.arange(100, dtype="u2").tofile(tmp_path / "train.bin")
    with pytest.raises(FormatError, match="expected a Parquet, Arrow or Feather file for column="):
        column_layout(tmp_path / "train.bin", "input_ids", cache_dir=tmp_path)
    with pytest.raises(FormatError, match=r"end in \.parquet, \.arrow, \.feather for column=, got none"):
        column_layout(tmp_path, "input_ids", cache_dir=tmp_path)
    with pytest.raises(TypeError, match="the name of a column"):
        column_layout(tmp_path, "", cache_dir=tmp_path)


@pytest.mark.slow
def test_a_full_disk_says_where_else_to_decode_and_leaves_what_is_done(tmp_path: Path) -> None:
    path = write(tmp_path / "t.parquet", table([[k] * 1000 for k in range(500)]), row_group_size=50)
    place = tmp_path / "small disk"
    place.mkdir()
    script = (
        "import lowtide.formats.columns.decoded as d\n"
        "d._SAVED_EVERY = 1\n"
        f"try:\n    d.column_layout({str(path)!r}, 'input_ids', cache_dir={str(place)!r})\n"
        "except OSError as problem:\n    print(problem.errno, problem)\n"
        f"print(len(list(__import__('pathlib').Path({str(place)!r}).rglob('progress.json'))))"
    )
    mount = f'mount -t tmpfs -o size=1m none \'{place}\' && exec "$0" -c "$1"'
    command = ["unshare", "-rm", "sh", "-c", mount, sys.executable, script]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if "mount" in ended.stderr or "unshare" in ended.stderr:
        pytest.skip(f"NOT TESTED: a full disk, because a small one cannot be mounted here ({ended.stderr.strip()})")
    assert ended.returncode == 0, ended.stderr
    told, kept = ended.stdout.splitlines()
    assert told.startswith("28 ")
    assert "expected room for the decoded ids, got no space left on device" in told
    assert "State cache_dir= on another disk" in told
    assert kept == "1"


def test_without_pyarrow_the_error_says_what_to_install(tmp_path: Path) -> None:
    path = write(tmp_path / "t.parquet", table(DOCUMENTS))
    script = (
        "import sys; sys.modules['pyarrow'] = None\n"
        "import lowtide\n"
        f"try:\n    lowtide.open_tokens({str(path)!r}, column='input_ids')\n"
        "except lowtide.FormatError as problem:\n    print(problem)"
    )
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert "pip install 'lowtide[parquet]'" in told


def test_what_datasets_saved_to_disk_opens_by_its_glob(tmp_path: Path) -> None:
    write(tmp_path / "data-00000-of-00002.stream.arrow", table([[1, 2]]))
    write(tmp_path / "data-00001-of-00002.stream.arrow", table([[3]]))
    (tmp_path / "state.json").write_text("{}")
    with pytest.raises(FormatError, match="column='input_ids'"):
        lowtide.open_tokens(tmp_path)
    with lowtide.open_tokens(tmp_path, column="input_ids", cache_dir=tmp_path / "cache") as tokens:
        assert tokens[:].tolist() == [1, 2, 3]
