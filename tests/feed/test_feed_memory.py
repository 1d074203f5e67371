"""A long run's memory by kind, in fresh processes: flat for every bounded strategy, and seen to grow for ``map``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.storage.processes import answer_of

MIB = 1 << 20
BOUNDED = ("read", "remap", "advise")

LONG_RUN = """
path, strategy, order, windows = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
began = Growth()  # page tables of a mapping are made early: they count from here
with lowtide.open_tokens(path, dtype="uint16", strategy=strategy, cache="keep", budget="32MiB") as tokens:
    feed = tokens.batches(64, length=256, order=order)
    for _ in range(100):
        x, y = next(feed)
    growth = Growth()
    for step in range(windows // 64):
        x, y = next(feed)
        if step % 50 == 0:
            growth.look()
            began.look()
    epochs = feed.cursor // feed._stream.epoch if order == "shuffled" else 0
    print(json.dumps([growth.peak, began.tables, epochs]))
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """512 MiB of nothing: holes are read and mapped like any other bytes."""
    place = tmp_path_factory.mktemp("memory") / "tokens.bin"
    with place.open("wb") as file:
        file.truncate(512 * MIB)
    return place


@pytest.mark.slow
@pytest.mark.parametrize("strategy", BOUNDED)
def test_tens_of_thousands_of_windows_grow_neither_heap_nor_mapped_pages_nor_page_tables(
    path: Path, strategy: str
) -> None:
    # Mapped pages would show within a few thousand windows; the plain reads of `read` get the long run.
    windows = 100_000 if strategy == "read" else 30_000
    peak, tables, _ = json.loads(answer_of(LONG_RUN, path, strategy, "shuffled", windows))
    assert peak < 8 * MIB
    assert tables < MIB // 4


@pytest.mark.slow
def test_random_windows_grow_nothing_either(path: Path) -> None:
    peak, tables, _ = json.loads(answer_of(LONG_RUN, path, "read", "random", 100_000))
    assert peak < 8 * MIB
    assert tables < MIB // 4


@pytest.mark.slow
def test_many_epochs_of_a_small_corpus_grow_nothing(tmp_path: Path) -> None:
    small = tmp_path / "small.bin"
    small.write_bytes(bytes(200_000))  # 389 windows an epoch
    peak, tables, epochs = json.loads(answer_of(LONG_RUN, small, "read", "shuffled", 100_000))
    assert epochs > 250
    assert peak < 8 * MIB
    assert tables < MIB // 4


@pytest.mark.slow
def test_a_kept_mapping_grows_under_the_same_measurement(path: Path) -> None:
    """The negative control: were this not seen, the tests above would prove nothing."""
    peak, tables, _ = json.loads(answer_of(LONG_RUN, path, "map", "shuffled", 30_000))
    assert peak > 64 * MIB
    assert tables > MIB // 2  # a page of tables for every 2 MiB


@pytest.mark.slow
def test_thousands_of_ranks_over_trillions_of_tokens_take_constant_memory(tmp_path: Path) -> None:
    """256 of 4,096 ranks in turn, each reading at steps all over the epoch; 15 trillion tokens in six sparse files."""
    for number in range(6):
        with (tmp_path / f"shard_{number}.bin").open("wb") as file:
            file.truncate(5 * 10**12)
    script = """
    with lowtide.open_tokens(sys.argv[1] + "/*.bin", dtype="uint16", budget="16MiB", cache="keep") as tokens:
        assert len(tokens) == 15 * 10**12
        def use(rank):
            feed = tokens.batches(16_384, length=4096, rank=rank, world=4096)
            for step in (0, 10**4, 10**5, 2 * 10**5, 223_516, 10**9):
                x, y = feed[step]
                assert x.shape == y.shape == (4, 4096)
            feed.seek(10**5)
            for _ in range(10):
                next(feed)
            feed.state_dict()
        use(4095)
        growth = Growth()
        for rank in range(0, 4096, 16):
            use(rank)
            growth.look()
        print(json.dumps([growth.peak, growth.tables]))
    """
    peak, tables = json.loads(answer_of(script, tmp_path))
    assert peak < 4 * MIB
    assert tables < MIB // 4
