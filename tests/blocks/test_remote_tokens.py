"""Tokens and corpora behind addresses: S3 as moto serves it, and web servers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.blocks.conftest import BUCKET, S3, Behind, a_corpus

import lowtide


def batches(tokens: lowtide.Tokens) -> list[Any]:
    feed = tokens.batches(16, length=128, seed=1337)
    return [np.array(next(feed)) for _ in range(20)]


def test_an_object_of_s3_is_an_array(s3: S3, tmp_path: Path) -> None:
    rows = np.random.default_rng(0).standard_normal((5_000, 64))
    np.save(tmp_path / "x.npy", rows)
    address = s3.put("arrays/x.npy", (tmp_path / "x.npy").read_bytes())
    remote = lowtide.open(address, **s3.options)
    np.testing.assert_array_equal(np.concatenate(list(remote.chunks(700))), rows)
    np.testing.assert_array_equal(remote[[4_999, 3, 2_500]], rows[[4_999, 3, 2_500]])


def test_a_glob_of_s3_is_its_objects_in_counting_order(s3: S3) -> None:
    for number in (10, 2, 1):
        s3.put(f"parts/rows_{number}.f32", np.full((100, 4), number, "f4").tobytes())
    s3.put("parts/deeper/rows_3.f32", bytes(16))
    remote = lowtide.open(f"s3://{BUCKET}/parts/rows_*.f32", dtype="float32", shape=(-1, 4), **s3.options)
    assert remote[:, 0].tolist() == [1.0] * 100 + [2.0] * 100 + [10.0] * 100
    with pytest.raises(FileNotFoundError, match="expected objects that match this pattern"):
        lowtide.open(f"s3://{BUCKET}/parts/none_*.f32", dtype="float32", **s3.options)


def test_a_corpus_in_s3_feeds_what_the_same_corpus_feeds_here(
    s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    here = a_corpus(tmp_path / "corpus")
    for file in here.iterdir():
        s3.put(f"ours/{file.name}", file.read_bytes())
    remote, local = lowtide.open_tokens(f"s3://{BUCKET}/ours/", **s3.options), lowtide.open_tokens(here)
    assert (len(remote), remote.eot, remote.vocab) == (600_000, 0, 1000)
    for ours, theirs in zip(batches(remote), batches(local), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    one, two = remote.batches(8, length=64), local.batches(8, length=64)
    assert one.state_dict() == two.state_dict()
    packed = [tokens.windows(256, cut="packed").batches(4, seed=2) for tokens in (remote, local)]
    for _ in range(5):
        for ours, theirs in zip(next(packed[0]), next(packed[1]), strict=True):
            np.testing.assert_array_equal(ours, theirs)
    assert not list(Path.cwd().iterdir()), "an index is not kept below a directory called s3:"


def test_a_directory_of_shards_and_its_parts_are_found_by_a_listing(s3: S3) -> None:
    for name, first in (("train_0", 0), ("train_1", 1000), ("val_0", 5000)):
        s3.put(f"shards/{name}.bin", np.arange(first, first + 1000, dtype="<u2").tobytes())
    train = lowtide.open_tokens(f"s3://{BUCKET}/shards", dtype="uint16", **s3.options)
    assert len(train) == 2000 and train.layout.part == "train"
    val = lowtide.open_tokens(f"s3://{BUCKET}/shards/", dtype="uint16", part="val", **s3.options)
    assert val[:3].tolist() == [5000, 5001, 5002]


def test_wrong_credentials_and_missing_buckets_are_told(s3: S3) -> None:
    with pytest.raises(FileNotFoundError, match=r"s3://nothing-here/x\.npy: expected an object"):
        lowtide.open("s3://nothing-here/x.npy", **s3.options)


def test_tokens_of_a_web_server_cost_three_requests_to_open(behind: Behind) -> None:
    tokens = np.arange(500_000, dtype="<u2")
    behind.server.objects["t/train.bin"] = tokens.tobytes()
    remote = lowtide.open_tokens(behind.server.url("t/train.bin"), dtype="uint16", cache_dir=behind.cache)
    assert behind.server.seen.requests <= 3
    np.testing.assert_array_equal(remote[250_000:250_100], tokens[250_000:250_100])


def test_a_corpus_of_a_web_server_is_found_by_its_manifest(behind: Behind, tmp_path: Path) -> None:
    here = a_corpus(tmp_path / "corpus")
    behind.server.objects.update({f"c/{file.name}": file.read_bytes() for file in here.iterdir()})
    remote = lowtide.open_tokens(behind.server.url("c/"), cache_dir=behind.cache)
    for ours, theirs in zip(batches(remote), batches(lowtide.open_tokens(here)), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("name", ["x.bin", "x.ds"])
def test_a_signed_address_is_opened_where_nothing_beside_it_may_be_looked_at(behind: Behind, name: str) -> None:
    """Stores answer 403 where somebody who may not list asks for what is not there."""
    ids = np.arange(5_000, dtype="<u2")
    behind.server.objects[name] = ids.tobytes()
    behind.server.faults.token = "only this one"
    address = behind.server.url(name) + "?token=only+this+one"
    tokens = lowtide.open_tokens(address, dtype="uint16", cache_dir=behind.cache)
    np.testing.assert_array_equal(tokens[:], ids)
    with pytest.raises(lowtide.FormatError, match="dtype="):
        lowtide.open_tokens(address, cache_dir=behind.cache)


def test_a_name_and_a_password_in_an_address_are_sent_also_for_what_lies_beside_it(behind: Behind) -> None:
    ids = np.arange(5_000, dtype="<u2")
    behind.server.objects |= {"x.ds": ids.tobytes(), "x.ds.metadata": b"tok|2\n5000\n5.0 KT"}
    behind.server.faults.user = "me:s3@cr/3t"
    address = behind.server.url("x.ds").replace("//", "//me:s3%40cr%2F3t@")
    tokens = lowtide.open_tokens(address, cache_dir=behind.cache)
    np.testing.assert_array_equal(tokens[:], ids)
    assert "s3%" not in repr(tokens) + str(tokens.plan())
