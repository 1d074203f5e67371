"""What people write by habit from NumPy, pandas and torch is answered with what to write here."""

from __future__ import annotations

import copy
import operator
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lowtide


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("habits") / "rows.npy"
    np.save(found, np.arange(4096, dtype=np.float32).reshape(-1, 4))
    return found


@pytest.fixture(scope="module")
def array(path: Path) -> lowtide.Array:
    return lowtide.open(path)


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> lowtide.Tokens:
    found = tmp_path_factory.mktemp("habits") / "tokens.bin"
    np.arange(5000, dtype=np.uint16).tofile(found)
    return lowtide.open_tokens(found, dtype="uint16")


def held(kind: str, array: lowtide.Array, tokens: lowtide.Tokens) -> Any:
    return {"array": array, "tokens": tokens, "together": lowtide.together(array, array)}[kind]


@pytest.mark.parametrize("kind", ["array", "tokens", "together"])
@pytest.mark.parametrize(
    ("sign", "do"),
    [
        ("==", operator.eq),
        ("!=", operator.ne),
        ("<", operator.lt),
        (">=", operator.ge),
        ("+", operator.add),
        ("-", operator.sub),
        ("*", operator.mul),
        ("/", operator.truediv),
        ("@", operator.matmul),
    ],
)
def test_comparing_and_computing_say_that_rows_are_on_disk(
    kind: str, sign: str, do: Callable[..., Any], array: lowtide.Array, tokens: lowtide.Tokens
) -> None:
    one = held(kind, array, tokens)
    for left, right in ((one, 3), (3, one)) if sign in "+-*/@" else ((one, 3),):
        with pytest.raises(TypeError) as problem:
            do(left, right)
        said = str(problem.value)
        assert "expected numbers in memory for " + sign in said
        assert (f"... {sign} X[:]" if right is one else f"X[:] {sign} ...") in said


def test_an_array_is_hashed_by_identity_and_found_again(array: lowtide.Array, path: Path) -> None:
    other = lowtide.open(path)
    assert hash(array) == object.__hash__(array)
    assert {array: 1, other: 2}[array] == 1
    assert array in [array]
    assert array != None  # noqa: E711 - as libraries write it
    assert len({array, other, array}) == 2


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("T", "X[:].T"),
        ("mean", "X.stats().mean"),
        ("astype", "X[:].astype"),
        ("sum", "X.chunks()"),
        ("iloc", "X[10:20]"),
        ("values", "X[:]"),
        ("shuffle", "X.shuffled(4096, seed=0)"),
    ],
)
def test_names_of_numpy_and_pandas_name_what_to_write(array: lowtide.Array, name: str, instead: str) -> None:
    with pytest.raises(AttributeError) as problem:
        getattr(array, name)
    assert str(problem.value).startswith(f"{array.where}: expected a name of lowtide.Array, got .{name}. Use ")
    assert instead in str(problem.value)
    assert not hasattr(array, name)


def test_other_names_are_pythons_own_error_and_numpy_still_reads_an_array(
    array: lowtide.Array, tokens: lowtide.Tokens
) -> None:
    with pytest.raises(AttributeError, match=r"'Array' object has no attribute 'nothing'"):
        array.nothing  # noqa: B018
    with pytest.raises(AttributeError, match=r"Use tokens\[10:20\]\.mean"):
        tokens.mean  # noqa: B018
    with pytest.raises(AttributeError, match=r"Use tokens\.batches\(64, length=1024\)"):
        tokens.shuffled  # noqa: B018
    assert np.mean(array) == np.arange(4096).mean()
    assert np.array_equal(np.asarray(array)[:2], array[:2])
    for one in (array, tokens):
        again = pickle.loads(pickle.dumps(one)), copy.copy(one)
        assert [len(two) for two in again] == [len(one)] * 2


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (
            lambda a: a.shuffled(batch_size=64),
            r"shuffled: expected its batch .*, got batch_size=64\. Use shuffled\(64\)\.",
        ),
        (lambda a: a.chunks(batch_size=8), r"Use chunks\(8\)\."),
        (lambda a: a.sample(4, shuffle=True), r"sample: .*got shuffle=True\. Use shuffled\(batch, seed=0\)"),
        (lambda a: a.shuffled(64, drop_last=True), r"got drop_last=True\. Skip it in the loop: if len\(rows\) < batch"),
        (lambda a: lowtide.open(a.where, mmap_mode="r"), r"open: expected strategy=.*mmap_mode='r'\. Leave it out"),  # type: ignore[call-arg]
    ],
)
def test_keywords_of_others_name_ours(array: lowtide.Array, call: Callable[[Any], Any], said: str) -> None:
    with pytest.raises(TypeError, match=said):
        call(array)


def test_keywords_of_feeds_name_ours(tokens: lowtide.Tokens) -> None:
    feeds: Any = tokens
    with pytest.raises(TypeError, match=r"batches: expected its batch.*Use batches\(8\)"):
        feeds.batches(batch_size=8, length=16)
    with pytest.raises(TypeError, match=r"Use batches\(\.\.\.\)\.whole_batches\(\)"):
        feeds.windows(16).batches(8, drop_last=True)
    with pytest.raises(TypeError, match=r"shuffle=False\. Use order='shuffled' \(the default\) or order='sequential'"):
        feeds.batches(8, length=16, shuffle=False)
    with pytest.raises(TypeError, match="unexpected keyword argument 'lenght'"):
        feeds.batches(8, lenght=16)


def test_a_name_as_an_index_says_what_rows_are_called(array: lowtide.Array, tmp_path: Path) -> None:
    with pytest.raises(IndexError, match=r"got the name 'a'\. Use numbers; rows have no names\."):
        array["a"]
    fields = np.zeros(8, [("a", "f4"), ("b", "i4")])
    np.save(tmp_path / "fields.npy", fields)
    with lowtide.open(tmp_path / "fields.npy") as named:
        with pytest.raises(IndexError, match=r"got the name 'a'\. Read rows first: X\[10:20\]\['a'\]\."):
            named["a"]
        with pytest.raises(IndexError, match=r"got the name 'c'\. Use one of a, b on rows that were read\."):
            named["c"]
    both = lowtide.together(x=array, y=array)
    with pytest.raises(IndexError, match=r"Read rows first: both\[10:20\]\['y'\]\."):
        both["y"]
    assert both[10:20]["y"].shape == (10, 4)


def test_what_is_missing_or_no_array_is_said_without_names_of_ours(
    array: lowtide.Array, tokens: lowtide.Tokens
) -> None:
    anything: Any = array
    with pytest.raises(TypeError, match=r"^shuffled\(\) missing 1 required positional argument: 'batch'$"):
        anything.shuffled()
    for given, way in (
        (3, "Use np.asarray"),
        ([1, 2, 3], "Use np.asarray"),
        (tokens, "Open its file with lowtide.open"),
    ):
        with pytest.raises(TypeError, match=rf"together: expected arrays, or paths of them, got \w+\. {way}"):
            lowtide.together(array, given)  # type: ignore[arg-type]
    with pytest.raises(AttributeError, match=r"Use len\(both\)"):
        lowtide.together(array, array).shape  # noqa: B018
    for key in ("1.5", ["a"], [1.5]):
        with pytest.raises(IndexError, match=r"Use numbers|Use whole numbers\.|Convert with \.astype"):
            array[key]
    with pytest.raises(ValueError, match=r"got shape \(1024, 4\)\. Use a list of row numbers\."):
        array.gather(array, 4)
