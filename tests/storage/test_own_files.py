"""Files of ours beside data that others may write to: nothing planted is written through or believed."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lowtide
from lowtide.blocks.asking import MAKER
from lowtide.corpus.journal import Journal
from lowtide.storage.own_files import NotOursError, OwnDirectory, atomic_write, open_own, seal, user_cache

NOBODY = 65534
PRIVATE = b"private\n"


def as_nobody(work: Callable[[], object]) -> None:
    """Let another user do it, in a child of this process."""
    if os.geteuid() != 0:
        pytest.skip("NOT TESTED: what another user plants beside the data - only root can become another user")
    child = os.fork()
    if child == 0:
        try:
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            work()
        except BaseException as problem:
            os.write(2, f"{problem!r}\n".encode())
            os._exit(1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, "the other user could not plant anything"


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory that everybody may write to, below ones that everybody may pass; the user's cache lies elsewhere.

    Not sticky: there the kernel's own fs.protected_symlinks would refuse some of this first.
    """
    for place in (tmp_path, *tmp_path.parents):
        if place.owner() == Path(tmp_path).owner() and place != Path("/"):
            place.chmod(place.stat().st_mode | 0o055)
    found = tmp_path / "shared"
    found.mkdir()
    found.chmod(0o777)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    yield found


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    found = tmp_path / "private.txt"
    found.write_bytes(PRIVATE)
    return found


def tokens_in(directory: Path) -> Path:
    ids = np.random.default_rng(0).integers(1, 500, 60_000).astype(np.uint16)
    ids[::100] = 0
    path = directory / "tokens.bin"
    ids.tofile(path)
    return path


def opened(path: Path) -> lowtide.Tokens:
    return lowtide.open_tokens(path, dtype="uint16", eot=0)


def names_in(cache: Path) -> list[str]:
    return sorted(one.name for one in cache.rglob("*") if one.is_file())


@pytest.mark.parametrize("kind", ["symlink", "directory link"])
def test_a_planted_link_is_not_written_through(shared: Path, victim: Path, tmp_path: Path, kind: str) -> None:
    path = tokens_in(shared)
    with opened(path) as tokens:
        tokens.windows(64, documents=True)
    (name,) = names_in(shared / ".lowtide")
    for one in (shared / ".lowtide").iterdir():
        one.unlink()
    (shared / ".lowtide").rmdir()

    def plant() -> None:
        if kind == "directory link":
            (shared / ".lowtide").symlink_to(victim.parent)
            return
        (shared / ".lowtide").mkdir(mode=0o777)
        for stream in ("counts", "low"):
            (shared / ".lowtide" / f"{name}.{stream}.partial").symlink_to(victim)

    as_nobody(plant)
    before = names_in(victim.parent)
    with opened(path) as tokens:
        feed = tokens.windows(64, documents=True).batches(4, seed=1)
        assert len(next(feed)) == 3
    assert victim.read_bytes() == PRIVATE
    assert name in names_in(tmp_path / "cache")
    assert sorted(set(names_in(victim.parent)) - set(before)) == names_in(tmp_path / "cache")


def test_planted_packed_rows_are_not_believed(shared: Path, tmp_path: Path) -> None:
    path = tokens_in(shared)

    def first() -> Any:
        with opened(path) as tokens:
            return np.array(next(tokens.windows(64, cut="packed").batches(4, seed=1))[0])

    expected = first()
    made = {one.name: one.read_bytes() for one in (shared / ".lowtide").iterdir()}
    for one in (shared / ".lowtide").iterdir():
        one.unlink()
    (shared / ".lowtide").rmdir()
    tail = bytes(1000)

    def plant() -> None:
        (shared / ".lowtide").mkdir(mode=0o755)
        for name, content in made.items():
            (shared / ".lowtide" / name).write_bytes(content[:-1000] + tail if "packed" in name else content)

    as_nobody(plant)
    assert np.array_equal(first(), expected)
    assert names_in(tmp_path / "cache") == sorted(made)


def test_planted_decoded_columns_are_not_believed(shared: Path, tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow", reason="NOT TESTED: decoded columns - pyarrow is not installed")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "ids.parquet"
    parquet.write_table(arrow.table({"ids": [list(range(100)), list(range(50))]}), path)
    cache = shared / "cache"
    cache.mkdir()
    cache.chmod(0o1777)

    def first() -> list[int]:
        with lowtide.open_tokens(path, column="ids", cache_dir=cache) as tokens:
            return [int(one) for one in tokens[:5]]

    assert first() == [0, 1, 2, 3, 4]
    MAKER.close()
    made = {one: one.read_bytes() for one in (cache / "blocks").rglob("*") if one.is_file()}
    shutil.rmtree(cache / "blocks")

    def plant() -> None:
        for file, content in made.items():
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(np.full(len(content) // 8, 666, "<i8").tobytes() if file.name == "data" else content)

    as_nobody(plant)
    assert first() == [0, 1, 2, 3, 4]
    assert list((cache / f"blocks-{os.geteuid()}").rglob("survey.json"))


def test_a_linked_lock_and_log_of_a_run_are_refused(shared: Path, victim: Path) -> None:
    for name in (".lock", "metrics.jsonl"):
        as_nobody(lambda name=name: (shared / name).symlink_to(victim))  # type: ignore[misc]
        with pytest.raises(NotOursError, match=r"expected a file of yours, got a link.* Remove it, or choose"):
            open_own(shared / name, os.O_RDWR | os.O_CREAT)
    as_nobody(lambda: (shared / "theirs").write_bytes(b"x"))
    (shared / "theirs").chmod(0o666)
    with pytest.raises(NotOursError, match=f"got one of user {NOBODY}"):
        open_own(shared / "theirs", os.O_RDWR | os.O_CREAT)
    assert victim.read_bytes() == PRIVATE


def test_a_linked_lock_of_a_run_is_refused_by_the_trainer(shared: Path, victim: Path) -> None:
    checkpoints = pytest.importorskip("lowtide.train.checkpoints", reason="NOT TESTED: the trainer - no torch here")
    ledger = pytest.importorskip("lowtide.train.ledger")
    for name in (".lock", "metrics.jsonl"):
        as_nobody(lambda name=name: (shared / name).symlink_to(victim))  # type: ignore[misc]
    with pytest.raises(NotOursError), checkpoints.only_run(shared):
        pass
    with pytest.raises(NotOursError):
        ledger.WholeLines(shared / "metrics.jsonl")
    assert victim.read_bytes() == PRIVATE


def test_a_linked_lock_of_prepare_is_refused(shared: Path, victim: Path) -> None:
    def plant() -> None:
        (shared / ".lowtide-prepare").mkdir(mode=0o777)
        (shared / ".lowtide-prepare" / "lock").symlink_to(victim)

    as_nobody(plant)
    with (
        pytest.raises(NotOursError, match=f"expected a directory of yours, got one of user {NOBODY}"),
        Journal(shared).held(),
    ):
        pass
    assert victim.read_bytes() == PRIVATE


# What needs no second user


def test_what_we_make_beside_data_is_for_us_alone(shared: Path) -> None:
    with opened(tokens_in(shared)) as tokens:
        tokens.windows(64, documents=True)
    assert stat.S_IMODE((shared / ".lowtide").stat().st_mode) == 0o700
    (made,) = (shared / ".lowtide").iterdir()
    assert stat.S_IMODE(made.stat().st_mode) == 0o600


def test_a_directory_open_to_others_is_not_used(shared: Path, tmp_path: Path) -> None:
    (shared / ".lowtide").mkdir()
    (shared / ".lowtide").chmod(0o777)
    with pytest.raises(NotOursError, match="expected a directory that only you may write to, got mode 777"):
        OwnDirectory(shared / ".lowtide")
    with opened(tokens_in(shared)) as tokens:
        tokens.windows(64, documents=True)
    assert not list((shared / ".lowtide").iterdir())
    assert [one.suffix for one in user_cache().iterdir()] == [".index"]


@pytest.mark.parametrize("kind", ["symlink", "fifo", "hard link", "directory"])
def test_a_file_that_is_not_plainly_ours_is_neither_read_nor_written(tmp_path: Path, victim: Path, kind: str) -> None:
    directory = OwnDirectory(tmp_path / "ours")
    place = tmp_path / "ours" / "x"
    if kind == "symlink":
        place.symlink_to(victim)
    elif kind == "fifo":
        os.mkfifo(place)
    elif kind == "directory":
        place.mkdir()
    else:
        os.link(victim, place)
    for flags in (os.O_RDONLY, os.O_RDWR | os.O_CREAT):
        with pytest.raises(NotOursError, match=r"x: expected a file of yours, got .*\. Remove it"):
            directory.open("x", flags)
    assert not directory.has("x")
    if kind != "directory":
        with directory.write("x") as file:
            file.write(b"ours")
        assert directory.open("x").read() == b"ours"
    assert victim.read_bytes() == PRIVATE


def test_an_index_without_the_seal_of_its_data_is_refused(shared: Path) -> None:
    path = tokens_in(shared)
    with opened(path) as tokens:
        tokens.windows(64, documents=True)
    (made,) = (shared / ".lowtide").iterdir()
    content = made.read_bytes()
    at = content.index(b'"seal": "') + 9
    made.write_bytes(content[:at] + b"0" * 32 + content[at + 32 :])
    with opened(path) as tokens, pytest.raises(lowtide.FormatError, match="expected the seal of what it was made from"):
        tokens.windows(64, documents=True)
    assert seal("kept", {"a": 1}) != seal("columns", {"a": 1}) != seal("columns", {"a": 2})


def test_a_full_disk_is_a_write_error_with_path_and_bytes_free(tmp_path: Path) -> None:
    directory = OwnDirectory(tmp_path / "ours")
    writers: tuple[Any, ...] = (lambda: directory.write("x"), lambda: atomic_write(tmp_path / "ours" / "x"))
    for write in writers:
        with (
            pytest.raises(
                lowtide.WriteError, match=r"x: expected to write it, got .* free on .*Free some space"
            ) as found,
            write(),
        ):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        assert found.value.errno == errno.ENOSPC and found.value.free is not None
        assert found.value.path == str(tmp_path / "ours" / "x")
    assert not list((tmp_path / "ours").iterdir())
