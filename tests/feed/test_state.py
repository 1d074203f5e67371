"""A state of other data or another order is refused, and the error names what differs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.feeds import numbered, raw_file

import lowtide
from lowtide.reading.fingerprint import BLOCK_BYTES as FINGERPRINT_BYTES
from lowtide.reading.fingerprint import BLOCKS as FINGERPRINT_BLOCKS

COUNT = 200_000
IDS = numbered(COUNT)


@pytest.fixture
def state(tokens: lowtide.Tokens) -> dict[str, Any]:
    feed = tokens.batches(8, length=32, seed=7)
    next(feed)
    found: dict[str, Any] = json.loads(json.dumps(feed.state_dict()))
    return found


def test_a_state_is_a_few_plain_values_in_json(tokens: lowtide.Tokens, path: Path) -> None:
    feed = tokens.batches(np.int32(8), length=np.int64(32), seed=np.uint8(7), rank=np.int8(1), world=np.int8(2))  # type: ignore[arg-type]
    next(feed)
    text = json.dumps(feed.state_dict())
    assert len(text) < 400
    assert path.name not in text  # nor where it lies
    assert json.loads(text)["rows"] == 8
    assert {"length": 32, "order": "shuffled", "seed": 7}.items() <= json.loads(text).items()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"length": 33}, "expected length=33, got 32. Make the feed with length=32"),
        ({"seed": 8}, "expected seed=8, got 7. Make the feed with seed=7"),
        ({"order": "random"}, "expected order='random', got 'shuffled'"),
        ({"order": "sequential"}, "expected order='sequential', got 'shuffled'"),
    ],
)
def test_a_state_of_other_settings_is_refused_by_name(
    tokens: lowtide.Tokens, state: dict[str, Any], settings: dict[str, Any], words: str
) -> None:
    feed = tokens.batches(8, **{"length": 32, "seed": 7, **settings})
    next(feed)
    with pytest.raises(lowtide.StateError, match=words):
        feed.load_state_dict(state)
    assert feed.cursor == 8  # nothing moved


@pytest.mark.parametrize("settings", [{"batch": 24}, {"rank": 3, "world": 8}, {"dtype": "uint16"}, {"skip": [(9, 12)]}])
def test_what_does_not_change_the_rows_may_change(
    tokens: lowtide.Tokens, state: dict[str, Any], settings: dict[str, Any]
) -> None:
    feed = tokens.batches(settings.pop("batch", 8), length=32, seed=7, **settings)
    feed.load_state_dict(state)
    assert feed.cursor == 8


def _one_id_changed_at(token: int) -> Callable[[Path], tuple[Any, str]]:
    def make(directory: Path) -> tuple[Any, str]:
        ids = IDS.copy()
        ids[token] ^= 1
        return raw_file(directory, ids), "uint16"

    return make


def _cut_in_two(directory: Path) -> tuple[Any, str]:
    parts = (IDS[:77], IDS[77:])
    return [raw_file(directory, part, f"{number}.bin") for number, part in enumerate(parts)], "uint16"


def _shorter(directory: Path) -> tuple[Any, str]:
    return raw_file(directory, IDS[:-1]), "uint16"


def _as_int16(directory: Path) -> tuple[Any, str]:
    return raw_file(directory, IDS), "int16"


def _sampled(block: int) -> int:
    """The first token of the i-th block that the fingerprint looks at."""
    return (COUNT - FINGERPRINT_BYTES // 2) * block // (FINGERPRINT_BLOCKS - 1)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (_one_id_changed_at(0), "the data itself"),
        (_one_id_changed_at(_sampled(7) + 5), "the data itself"),
        (_one_id_changed_at(COUNT - 1), "the data itself"),
        (_cut_in_two, "the sizes of the files was '[0-9a-f]{32}' and is '[0-9a-f]{32}'"),
        (_shorter, "the number of tokens was 200000 and is 199999"),
        (_as_int16, "the dtype was '<u2' and is '<i2'"),
    ],
    ids=["first token", "inside", "last token", "two files", "shorter", "dtype"],
)
def test_a_state_of_other_data_is_refused_by_what_differs(
    state: dict[str, Any], tmp_path: Path, make: Callable[[Path], tuple[Any, str]], words: str
) -> None:
    source, dtype = make(tmp_path)
    with lowtide.open_tokens(source, dtype=dtype) as other:
        feed = other.batches(8, length=32, seed=7)
        with pytest.raises(
            lowtide.StateError, match=f"got other data: {words}.*Open the data the state was saved with"
        ):
            feed.load_state_dict(state)
        assert feed.cursor == 0


def test_a_state_of_another_split_is_refused(tokens: lowtide.Tokens, state: dict[str, Any]) -> None:
    train, val = tokens.split(val=0.5)
    for part, words in ((train, "the number of tokens"), (val, "the number of tokens")):
        with pytest.raises(lowtide.StateError, match=words):
            part.batches(8, length=32, seed=7).load_state_dict(state)
    with pytest.raises(lowtide.StateError, match="where the split begins was 0 and is 100000"):
        val.batches(8, length=32).load_state_dict(train.batches(8, length=32).state_dict())
    again, _ = tokens.split(val=0.5)
    again.batches(8, length=32).load_state_dict(train.batches(8, length=32).state_dict())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"rows": -1}, "expected rows of 0 or more, got -1. The state is damaged"),
        ({"rows": "8"}, "expected rows of 0 or more, got '8'"),
        ({"rows": 8.0}, "got 8.0"),
        ({"rows": True}, "got True"),
        ({"rows": None}, "got None"),
        ({"rows": 2**63}, f"expected rows of at most {2**62}, got {2**63}. The state is damaged"),
        ({"lowtide": 2}, "expected a feed's state_dict.* of version 1, got version 2"),
        ({"lowtide": None}, "got version None"),
        ({"data": None}, "expected a fingerprint of the data, got none"),
        ({"data": {}}, "the dtype was None and is '<u2'"),
        ({"seed": None}, "expected seed=7, got None"),
    ],
)
def test_a_damaged_state_is_refused(
    tokens: lowtide.Tokens, state: dict[str, Any], change: dict[str, Any], words: str
) -> None:
    feed = tokens.batches(8, length=32, seed=7)
    with pytest.raises(lowtide.StateError, match=words):
        feed.load_state_dict({**state, **change})
    for name in change:
        with pytest.raises(lowtide.StateError, match="state: expected"):
            feed.load_state_dict({key: value for key, value in state.items() if key != name})
    assert feed.cursor == 0


@pytest.mark.parametrize("wrong", [None, [], "state", 3, {}])
def test_what_is_no_state_at_all_is_refused(tokens: lowtide.Tokens, wrong: Any) -> None:
    with pytest.raises(lowtide.StateError, match=r"Save it with feed.state_dict\(\)"):
        tokens.batches(8, length=32).load_state_dict(wrong)


def test_rows_beyond_the_end_of_a_sequential_feed_are_refused(tokens: lowtide.Tokens) -> None:
    feed = tokens.batches(8, length=32, order="sequential")
    for _ in feed:
        pass
    state = feed.state_dict()
    assert state["rows"] == (COUNT - 1) // 32 + 1
    feed.load_state_dict(state)
    assert next(feed, None) is None
    with pytest.raises(lowtide.StateError, match="expected rows of at most 6250, got 6251"):
        feed.load_state_dict({**state, "rows": state["rows"] + 1})


def test_a_state_that_lists_every_file_as_they_once_did_is_still_accepted(
    tokens: lowtide.Tokens, state: dict[str, Any], path: Path
) -> None:
    feed = tokens.batches(8, length=32, seed=7)
    feed.load_state_dict({**state, "data": {**state["data"], "files": [path.stat().st_size]}})
    assert feed.cursor == 8
    with pytest.raises(lowtide.StateError, match="the sizes of the files was") as caught:
        feed.load_state_dict({**state, "data": {**state["data"], "files": list(range(1000))}})
    assert len(str(caught.value)) < 300, "a long list is shortened"


def test_a_setting_that_only_the_state_has_is_refused(tokens: lowtide.Tokens, state: dict[str, Any]) -> None:
    feed = tokens.batches(8, length=32, seed=7)
    with pytest.raises(lowtide.StateError, match="expected locality=None, got '64MiB'"):
        feed.load_state_dict({**state, "locality": "64MiB"})


@pytest.mark.parametrize("strategy", ["read", "remap", "advise", "map"])
@pytest.mark.parametrize("cache", ["keep", "drop"])
def test_a_fingerprint_does_not_depend_on_how_bytes_are_read(path: Path, strategy: str, cache: str) -> None:
    with (
        lowtide.open_tokens(path, dtype="uint16") as plain,
        lowtide.open_tokens(path, dtype="uint16", strategy=strategy, cache=cache) as tokens,
    ):
        assert tokens.fingerprint() == plain.fingerprint()


def test_a_corpus_of_fewer_tokens_than_a_block_has_a_fingerprint_too(tmp_path: Path) -> None:
    ids = numbered(40)
    with lowtide.open_tokens(raw_file(tmp_path, ids), dtype="uint16") as tokens:
        state = tokens.batches(2, length=4).state_dict()
    ids[20] ^= 1
    with lowtide.open_tokens(raw_file(tmp_path, ids), dtype="uint16") as tokens:
        feed = tokens.batches(2, length=4)
        with pytest.raises(lowtide.StateError, match="the data itself"):
            feed.load_state_dict(state)
