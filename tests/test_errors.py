"""The tree of errors: what each one also is, and that it survives a process boundary."""

from __future__ import annotations

import errno
import pickle

import pytest

import lowtide


@pytest.mark.parametrize(
    ("kind", "builtin"),
    [
        (lowtide.FormatError, ValueError),
        (lowtide.StateError, ValueError),
        (lowtide.ReadError, OSError),
        (lowtide.WriteError, OSError),
        (lowtide.BudgetError, MemoryError),
    ],
)
def test_every_error_is_a_lowtide_error_and_the_builtin_people_catch(
    kind: type[Exception], builtin: type[Exception]
) -> None:
    assert issubclass(kind, lowtide.LowtideError)
    assert issubclass(kind, builtin)


def test_a_read_error_carries_path_offset_and_errno_and_prints_its_message() -> None:
    problem = lowtide.ReadError("x.npy: expected 8, got 3.", path="x.npy", offset=128, errno=errno.EIO)
    assert (problem.path, problem.offset, problem.errno) == ("x.npy", 128, errno.EIO)
    assert str(problem) == "x.npy: expected 8, got 3."


def test_a_read_error_survives_pickle_with_everything_it_carries() -> None:
    problem = lowtide.ReadError("x.npy: expected 8, got 3.", path="x.npy", offset=128, errno=errno.EIO)
    again = pickle.loads(pickle.dumps(problem))
    assert type(again) is lowtide.ReadError
    assert (str(again), again.path, again.offset, again.errno) == (str(problem), "x.npy", 128, errno.EIO)


def test_a_read_error_without_an_errno_has_none() -> None:
    assert lowtide.ReadError("short", path="x", offset=0).errno is None


def test_a_write_error_survives_pickle_with_everything_it_carries() -> None:
    problem = lowtide.WriteError("x.npy: full", path="x.npy", wanted=9, free=3, errno=errno.ENOSPC, strerror="full")
    again = pickle.loads(pickle.dumps(problem))
    assert type(again) is lowtide.WriteError and str(again) == "x.npy: full"
    assert (again.path, again.wanted, again.free, again.errno, again.strerror) == ("x.npy", 9, 3, errno.ENOSPC, "full")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://me:word@host:8/x.npy?token=a#b: expected", "https://host:8/x.npy: expected"),
        ("http:/me:word@host/corpus/manifest.json", "http:/host/corpus/manifest.json"),  # as pathlib has it
        (
            "web=https://host/x?sig=A//B==:0.7,code=/data/x?:0.3;9:web=1",
            "web=https://host/x:0.7,code=/data/x?:0.3;9:web=1",
        ),
        ('lowtide.open("ftp://me:word@host/x")', 'lowtide.open("ftp://host/x")'),
        ("s3://bucket/shard-?[0-9]*.npy", "s3://bucket/shard-?[0-9]*.npy"),
        ("/data/a?b@c.npy: expected x:/y@z", "/data/a?b@c.npy: expected x:/y@z"),
    ],
)
def test_no_error_repeats_what_may_be_secret_in_an_address(text: str, shown: str) -> None:
    assert str(lowtide.FormatError(text)) == shown
    assert str(lowtide.ReadError(text, path="x", offset=0)) == shown
    assert str(pickle.loads(pickle.dumps(lowtide.ReadError(text, path="x", offset=0)))) == shown
