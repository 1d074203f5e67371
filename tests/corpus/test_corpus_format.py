"""The format, byte by byte: what is pinned here is what readers elsewhere rely on."""

from __future__ import annotations

import hashlib
import json
import struct
import zlib
from pathlib import Path

import numpy as np
from tests.prepare.conftest import snapshot, write_jsonl

import lowtide
from lowtide.prepare import Request, prepare

MANIFEST = """{
 "lowtide": 1,
 "dtype": "uint16",
 "vocab": 257,
 "eot": 256,
 "tokens": 8,
 "documents": 2,
 "shards": [
  {
   "file": "shard-00000.bin",
   "tokens": 8,
   "crc32": "cb74e0d3",
   "documents": 2,
   "ends": "shard-00000.ends",
   "ends_crc32": "eb6f1c67"
  }
 ],
 "tokenizer": {
  "kind": "bytes"
 },
 "encoder": "bytes",
 "provenance": {
  "settings": {
   "train_bpe": 0,
   "eot": "",
   "lines": true,
   "separator": "",
   "field": "text",
   "column": "text",
   "val": 0.0,
   "test": 0.0,
   "dedup": false,
   "shard_tokens": 100000000,
   "invalid_utf8": "refuse",
   "skip_bad": false,
   "endings": ""
  },
  "inputs": {
   "files": 1,
   "bytes": 8,
   "sha256": "e1cece13eb1e25776112192a92befa49aae946a8e85ceb9d712debfab0f06d7a"
  },
  "met": {
   "documents": 2,
   "text_bytes": 6,
   "empty": 0,
   "bad": 0,
   "replaced": 0,
   "cut": 0,
   "duplicates": 0
  }
 },
 "digest": "DIGEST"
}
"""


def test_a_corpus_is_these_bytes(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("tí\nde!\n".encode())
    prepare([str(tmp_path / "a.txt")], tmp_path / "out", Request(lines=True))
    found = snapshot(tmp_path / "out")
    assert sorted(found) == ["manifest.json", "shard-00000.bin", "shard-00000.ends"]
    ids = [ord("t"), 0xC3, 0xAD, 256, ord("d"), ord("e"), ord("!"), 256]
    assert found["shard-00000.bin"] == struct.pack("<8H", *ids)
    assert found["shard-00000.ends"] == struct.pack("<2Q", 4, 8)
    # The digest is of the rest, without spaces and with sorted keys; a list keeps its order.
    rest = {name: value for name, value in json.loads(MANIFEST).items() if name != "digest"}
    text = json.dumps(rest, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    digest = hashlib.sha256(text.encode()).hexdigest()
    assert found["manifest.json"].decode() == MANIFEST.replace("DIGEST", digest)


def test_equal_input_gives_equal_bytes_in_another_place_at_another_time(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        write_jsonl(tmp_path / name / "a.jsonl", ["first", "second"])
        prepare([str(tmp_path / name / "a.jsonl")], tmp_path / name / "out", Request(val=0.5, dedup=True))
    assert snapshot(tmp_path / "one" / "out") == snapshot(tmp_path / "two" / "out")


def test_checksums_cover_four_mebibytes_each(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"x" * 3_000_000)
    prepare([str(tmp_path / "a.txt")], tmp_path / "out")
    (shard,) = json.loads((tmp_path / "out" / "manifest.json").read_text())["shards"]
    data = (tmp_path / "out" / shard["file"]).read_bytes()
    size = 4 * 1024 * 1024
    assert shard["crc32"] == "".join(f"{zlib.crc32(data[at : at + size]):08x}" for at in range(0, len(data), size))


def test_one_shard_of_a_corpus_opens_alone_with_its_documents(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", ["aaaa", "bb", "cccc"])
    prepare([str(path)], tmp_path / "out", Request(shard_tokens=5))
    with lowtide.open_tokens(tmp_path / "out" / "shard-00001.bin") as tokens:
        blocks = tokens.documents()
        assert blocks is not None
        assert np.concatenate(list(blocks)).tolist() == [3, 8]
        assert (tokens.eot, tokens.vocab) == (256, 257)
