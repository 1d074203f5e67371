"""Columns of token ids in Parquet and Arrow files become plain ids, once, restartable, checked."""

from __future__ import annotations

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
from lowtide import formats
from lowtide.blocks.asking import MAKER
from lowtide.blocks.block_store import open_store
from lowtide.blocks.objects import MadeFile, reaching
from lowtide.errors import FormatError, ReadError
from lowtide.formats import Layout, document_ends
from lowtide.formats.columns.id_columns import MOST_IDS
from lowtide.storage.own_files import user_cache

pa = pytest.importorskip(
    "pyarrow", reason="NOT TESTED: columns of ids, because pyarrow is not installed (pip install lowtide[parquet])"
)
feather, ipc, pq = (pytest.importorskip(f"pyarrow.{name}") for name in ("feather", "ipc", "parquet"))

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


def column_layout(
    source: Any, column: str, *, cache_dir: Path | None = None, disk: int | str = "auto", **more: Any
) -> Layout:
    with reaching(disk, cache_dir):
        return formats.column_layout(source, column, **more)


def read_back(layout: Layout) -> npt.NDArray[Any]:
    """The ids a layout describes, through their blocks."""
    store = open_store(layout.extents)
    found = np.empty(layout.nbytes, np.uint8)
    if found.nbytes:
        store.read_at(0, found)
    return found.view(layout.dtype)


def ends(layout: Layout) -> list[int]:
    return [int(end) for block in document_ends(layout) or () for end in block]


ALL = [token for document in DOCUMENTS for token in document]
NAMES = ["t.parquet", "t.arrow", "t.stream.arrow", "t.feather"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["list", "large_list"])
def test_one_row_is_one_document_in_every_kind_of_file(tmp_path: Path, name: str, kind: str) -> None:
    make = {"list": pa.list_, "large_list": pa.large_list}[kind]
    path = write(tmp_path / name, table(DOCUMENTS, make(pa.int32())))
    layout = column_layout(path, "input_ids", cache_dir=tmp_path / "cache")
    assert layout.dtype == np.int32
    assert read_back(layout).tolist() == [token for document in DOCUMENTS for token in document]
    assert ends(layout) == np.cumsum([len(document) for document in DOCUMENTS]).tolist()


@pytest.mark.parametrize("name", NAMES)
def test_the_name_of_a_column_may_have_dots(tmp_path: Path, name: str) -> None:
    """Parquet parts the names of nested values with them."""
    nested = pa.array([{"b": k} for k in range(len(DOCUMENTS))])
    content = pa.table({"a": nested, "a.b": pa.array(DOCUMENTS, pa.list_(pa.int32()))})
    path = write(tmp_path / name, content)
    assert read_back(column_layout(path, "a.b", cache_dir=tmp_path / "cache")).tolist() == ALL


def test_rows_of_a_fixed_length_are_documents_too(tmp_path: Path) -> None:
    path = write(tmp_path / "t.parquet", table([[1, 2], [3, 4], [5, 6]], pa.list_(pa.uint16(), 2)))
    layout = column_layout(path, "input_ids", cache_dir=tmp_path)
    assert (read_back(layout).tolist(), ends(layout)) == ([1, 2, 3, 4, 5, 6], [2, 4, 6])


def test_row_groups_and_files_run_on(tmp_path: Path) -> None:
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
def test_documents_longer_than_a_block_end_where_they_end(tmp_path: Path, name: str) -> None:
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


def decoded(cache: Path) -> set[tuple[int, int]]:
    """Every first pass that was finished: each writes a new survey.json."""
    found = [done.stat() for done in cache.rglob("survey.json")]
    return {(one.st_ino, one.st_mtime_ns) for one in found}


def test_a_column_is_decoded_once_and_again_only_when_the_file_changes(tmp_path: Path) -> None:
    path, cache = write(tmp_path / "t.parquet", table(DOCUMENTS)), tmp_path / "cache"
    first = column_layout(path, "input_ids", cache_dir=cache)
    once = decoded(cache)
    assert len(once) == 1
    assert column_layout(path, "input_ids", cache_dir=cache).extents == first.extents
    assert decoded(cache) == once
    other = tmp_path / "elsewhere"
    other.mkdir()
    shutil.copyfile(path, other / "u.parquet")  # a copy may differ in a byte that nobody looked at
    assert read_back(column_layout(other / "u.parquet", "input_ids", cache_dir=cache)).tolist() == ALL
    assert len(decoded(cache) - once) == 1
    write(path, table([[9, 9]]))
    assert read_back(column_layout(path, "input_ids", cache_dir=cache)).tolist() == [9, 9]
    assert len(decoded(cache) - once) == 2


def test_ids_that_disk_has_no_room_for_are_decoded_again(tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    ids = random.integers(0, 60_000, 12_000_000).astype("i4")  # 46 MiB
    starts = np.unique(np.concatenate(([0, len(ids)], random.integers(0, len(ids), 3_000)))).astype("i4")
    lists = pa.ListArray.from_arrays(pa.array(starts), pa.array(ids))
    for name, more in (("t.parquet", {"row_group_size": 700}), ("t.arrow", {}), ("t.stream.arrow", {})):
        path = write(tmp_path / name, pa.table({"input_ids": lists}), **more)
        with lowtide.open_tokens(path, column="input_ids", cache_dir=tmp_path / name[:-4], disk="16MiB") as tokens:
            for first in (0, 11_000_000, 5_000_000, 4_900_000, 700):
                np.testing.assert_array_equal(tokens[first : first + 300_000], ids[first : first + 300_000])
            here = sum(file.stat().st_blocks * 512 for file in (tmp_path / name[:-4]).rglob("data"))
            assert here <= 16 * 2**20
            ends = np.concatenate(list(tokens.documents() or ()))
            np.testing.assert_array_equal(ends, starts[1:])


def test_a_file_that_changed_under_its_ids_is_told(tmp_path: Path) -> None:
    path = write(tmp_path / "t.arrow", table([[1] * 1000] * 10))
    layout = column_layout(path, "input_ids", cache_dir=tmp_path / "cache")
    store = open_store(layout.extents)
    shutil.rmtree(tmp_path / "cache")  # always safe
    assert read_back(layout).tolist() == [1] * 10_000
    shutil.rmtree(tmp_path / "cache")
    write(path, table([[2] * 1000] * 10))
    with pytest.raises(ReadError, match="got it changed meanwhile"):
        store.read_at(0, memoryview(bytearray(8)))


@pytest.mark.parametrize("damage", ["ids cut", "ids gone", "ends cut", "no survey.json", "nonsense"])
def test_damaged_ids_are_decoded_again(tmp_path: Path, damage: str) -> None:
    path = write(tmp_path / "t.parquet", table(DOCUMENTS))
    first = column_layout(path, "input_ids", cache_dir=tmp_path / "cache")
    place = Path(MadeFile(first.extents[0].made).place)
    if damage == "ids cut":
        os.truncate(place / "data", 8)
    elif damage == "ids gone":
        (place / "data").unlink()
    elif damage == "ends cut":
        os.truncate(place / "ends.bin", 8)
    elif damage == "no survey.json":
        (place / "survey.json").unlink()
    else:
        (place / "survey.json").write_bytes(b"[1")
    again = column_layout(path, "input_ids", cache_dir=tmp_path / "cache")
    assert read_back(again).tolist() == ALL
    assert ends(again) == np.cumsum([len(document) for document in DOCUMENTS]).tolist()


@pytest.mark.slow
def test_of_several_processes_one_decodes_and_the_others_wait(tmp_path: Path) -> None:
    path, cache = write(tmp_path / "t.parquet", table([[1] * 1000] * 2000)), tmp_path / "cache"
    script = (
        "import lowtide, pathlib\n"
        f"tokens = lowtide.open_tokens({str(path)!r}, column='input_ids', cache_dir={str(cache)!r})\n"
        "survey = pathlib.Path(tokens.layout.documents[0].path).with_name('survey.json')\n"
        "print(len(tokens), survey.stat().st_ino)"
    )
    processes = [subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) for _ in range(3)]
    said = {process.communicate(timeout=200)[0] for process in processes}
    assert len(said) == 1  # whoever decoded it anew would have written another file
    assert said.pop().startswith(b"2000000 ")


MEMORY = """
import pathlib, lowtide
from lowtide.blocks.asking import MAKER
def peak():
    status = pathlib.Path(f"/proc/{{MAKER.pid}}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024
lowtide.open_tokens({small!r}, column="input_ids", cache_dir={cache!r})
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

    assert grown(f"lowtide.open_tokens({str(path)!r}, column='input_ids', cache_dir={cache!r})") < 32 * 2**20
    loading = f"MAKER.call('tests.formats.columns.test_id_columns:loaded', {{'path': {str(path)!r}}})"
    assert grown(f"import sys; {loading}") > 40 * 2**20  # what loading the column takes, in the same process


def loaded(path: str) -> Callable[[], int]:
    """Run by the maker: the whole column at once."""
    return lambda: int(pq.read_table(path).num_rows)


def test_the_cache_is_where_xdg_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    path = write(tmp_path / "t.parquet", table(DOCUMENTS))
    found = MadeFile(column_layout(path, "input_ids").extents[0].made)
    assert found.place.startswith(str(tmp_path / "xdg" / "lowtide"))
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


def test_a_missing_id_is_refused_and_a_missing_row_is_an_empty_document(tmp_path: Path) -> None:
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
    assert not list((tmp_path / "cache").rglob("survey.json"))


FUZZ = """
import random, sys
from pathlib import Path
from lowtide.errors import FormatError
from lowtide.formats.columns.id_columns import IdColumn, _item_type
from lowtide.formats.object_bytes import LocalBytes
sound, path, first, rounds = Path(sys.argv[1]).read_bytes(), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
for number in range(first, rounds):
    draw, data = random.Random(number), bytearray(sound)
    for _ in range(draw.randrange(1, 4)):  # most of a small file is its footer
        at = draw.randrange(4, len(data) - 8)
        data[at] = draw.choice((0, 0x7F, 0x80, 0xFF, draw.randrange(256), data[at] ^ 1 << draw.randrange(8)))
    Path(path).write_bytes(data)
    try:
        column = IdColumn(path, sys.argv[5], "input_ids", LocalBytes(path))
        _item_type(column)
        for block in column.blocks(range(len(column.promised()))):
            block.ends.sum()
        print(number, "read", flush=True)
    except FormatError:
        print(number, "refused", flush=True)
"""


@pytest.mark.slow
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
            Path(name).suffix[1:],
        ]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert done.returncode in (0, -signal.SIGABRT), done.stderr[-2000:]
        said += done.stdout.splitlines()
        if done.returncode:
            ended += 1
            shutil.copyfile(tmp_path / f"bad-{name}", tmp_path / f"ended-{ended}-{name}")
    assert ended < rounds // 200
    assert sum(line.endswith("refused") for line in said) > rounds // 10
    for number in range(1, min(ended, 3) + 1):  # what ends pyarrow ends its maker, and not us
        with pytest.raises((FormatError, ReadError)):
            column_layout(tmp_path / f"ended-{number}-{name}", "input_ids", cache_dir=tmp_path / "cache")


@pytest.mark.parametrize("name", NAMES)
def test_a_name_that_is_no_text_is_a_format_error(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / name, table(DOCUMENTS))
    path.write_bytes(path.read_bytes().replace(b"input_ids", b"inp\xff\xfeids"))
    with pytest.raises(FormatError):
        column_layout(path, "input_ids", cache_dir=tmp_path / "cache")


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
def test_a_full_disk_says_where_else_to_decode(tmp_path: Path) -> None:
    path = write(tmp_path / "t.parquet", table([[k] * 1000 for k in range(500)]), row_group_size=50)
    place = tmp_path / "small disk"
    place.mkdir()
    script = (
        "import lowtide\n"
        f"try:\n    lowtide.open_tokens({str(path)!r}, column='input_ids', cache_dir={str(place)!r}, disk='16MiB')[:]\n"
        "except OSError as problem:\n    print(problem.errno, problem)\n"
    )
    mount = f'mount -t tmpfs -o size=1m none \'{place}\' && exec "$0" -c "$1"'
    command = ["unshare", "-rm", "sh", "-c", mount, sys.executable, script]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if "mount" in ended.stderr or "unshare" in ended.stderr:
        pytest.skip(f"NOT TESTED: a full disk, because a small one cannot be mounted here ({ended.stderr.strip()})")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("28 ")
    assert "State cache_dir= on another disk" in ended.stdout


def test_bytes_that_end_pyarrow_are_a_typed_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "t.parquet", table(DOCUMENTS))
    (tmp_path / "pyarrow.py").write_text("import os; os.abort()")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    MAKER.close()
    with pytest.raises(ReadError, match=r"t.parquet: expected its maker .* got it ended by SIGABRT 3 times"):
        column_layout(path, "input_ids", cache_dir=tmp_path / "cache")
    with pytest.raises(FormatError, match=r"got a Parquet file\. The data may be damaged"):
        lowtide.open(path)
    MAKER.close()


def test_opening_and_reading_imports_no_pyarrow_here(tmp_path: Path) -> None:
    path = write(tmp_path / "t.parquet", table(DOCUMENTS))
    script = (
        "import sys, lowtide\n"
        f"tokens = lowtide.open_tokens({str(path)!r}, column='input_ids', cache_dir={str(tmp_path / 'cache')!r})\n"
        "print(int(tokens[:].sum()), 'pyarrow' in sys.modules)"
    )
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert told.split() == [str(sum(ALL)), "False"]


def test_without_pyarrow_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "t.parquet", table(DOCUMENTS))
    (tmp_path / "pyarrow.py").write_text("raise ImportError('not here')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    MAKER.close()  # the next one finds no pyarrow
    with pytest.raises(FormatError, match=r"pip install 'lowtide\[parquet\]'"):
        column_layout(path, "input_ids", cache_dir=tmp_path / "cache")
    MAKER.close()


def test_what_datasets_saved_to_disk_opens_by_its_glob(tmp_path: Path) -> None:
    write(tmp_path / "data-00000-of-00002.stream.arrow", table([[1, 2]]))
    write(tmp_path / "data-00001-of-00002.stream.arrow", table([[3]]))
    (tmp_path / "state.json").write_text("{}")
    with pytest.raises(FormatError, match="column='input_ids'"):
        lowtide.open_tokens(tmp_path)
    with lowtide.open_tokens(tmp_path, column="input_ids", cache_dir=tmp_path / "cache") as tokens:
        assert tokens[:].tolist() == [1, 2, 3]
