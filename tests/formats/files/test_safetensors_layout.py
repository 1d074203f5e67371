"""One tensor of a .safetensors file, against files its own library wrote."""

from __future__ import annotations

import json
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from safetensors.numpy import save_file

import lowtide
from lowtide.errors import FormatError
from lowtide.formats import Layout, layout_of, members_of, token_layout

ReadBack = Callable[[Layout], npt.NDArray[Any]]


def write(path: Path, header: object, data: bytes = b"", *, length: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)
    return path


def one(dtype: str = "F32", shape: Any = (2, 3), offsets: Any = (0, 24)) -> dict[str, Any]:
    return {"w": {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}}


@pytest.mark.parametrize("dtype", ["?", "u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8", "c8"])
def test_every_dtype_its_library_writes_opens_with_the_same_values(
    tmp_path: Path, read_back: ReadBack, dtype: str
) -> None:
    wanted = np.arange(12).reshape(3, 4).astype(dtype)
    save_file({"a": np.zeros(5, "f4"), "w": wanted, "z": np.ones((2, 2))}, tmp_path / "m.safetensors", {"k": "v"})
    layout = layout_of(tmp_path / "m.safetensors", tensor="w")
    assert (layout.format, layout.dtype, layout.shape) == ("safetensors", wanted.dtype, (3, 4))
    assert np.array_equal(read_back(layout), wanted)


@pytest.mark.parametrize(("dtype", "bits"), [("BF16", "<u2"), ("F8_E4M3", "u1"), ("F8_E5M2", "u1")])
def test_a_dtype_numpy_lacks_opens_as_its_bits_with_a_note(tmp_path: Path, dtype: str, bits: str) -> None:
    size = 6 * np.dtype(bits).itemsize
    layout = layout_of(write(tmp_path / "m.safetensors", one(dtype, offsets=(0, size)), bytes(size)))
    assert layout.dtype == bits
    assert dtype in layout.notes[0]


def test_a_dtype_smaller_than_a_byte_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="F4 of 4 bits"):
        layout_of(write(tmp_path / "m.safetensors", one("F4", offsets=(0, 3)), bytes(3)))


def test_without_a_name_the_only_tensor_opens_and_several_are_listed(tmp_path: Path) -> None:
    save_file({"only": np.zeros((2, 2))}, tmp_path / "m.safetensors")
    assert layout_of(tmp_path / "m.safetensors").shape == (2, 2)
    save_file({f"layer.{k}": np.zeros(2) for k in range(30)}, tmp_path / "m.safetensors")
    with pytest.raises(FormatError, match=r"30 tensors: .*'layer\.0'.* and 10 more\. State tensor="):
        layout_of(tmp_path / "m.safetensors")
    with pytest.raises(FormatError, match=r"expected a tensor 'w', got 30"):
        layout_of(tmp_path / "m.safetensors", tensor="w")


def test_tokens_are_the_only_integer_tensor_with_one_axis(tmp_path: Path, read_back: ReadBack) -> None:
    tokens = np.arange(9, dtype="u2")
    save_file({"tokens": tokens, "mask": np.zeros((9, 2), "u1"), "loss": np.zeros(9, "f4")}, tmp_path / "t.safetensors")
    assert read_back(token_layout(tmp_path / "t.safetensors")).tolist() == list(range(9))
    save_file({"a": tokens, "b": tokens}, tmp_path / "t.safetensors")
    with pytest.raises(FormatError, match="got 2 among 2: 'a', 'b'"):
        token_layout(tmp_path / "t.safetensors")
    write(tmp_path / "t.safetensors", one("BF16", (12,)), bytes(24))
    with pytest.raises(FormatError, match="got 0 among 1"):
        token_layout(tmp_path / "t.safetensors")


def test_it_is_recognised_without_its_suffix_unless_a_dtype_is_stated(tmp_path: Path) -> None:
    path = write(tmp_path / "model", one(), bytes(24))
    assert layout_of(path).format == "safetensors"
    assert layout_of(path, dtype="u1").format == "raw"


def test_open_tokens_takes_the_name_of_a_tensor(tmp_path: Path, read_back: ReadBack) -> None:
    save_file({"a": np.arange(4, dtype="u2"), "b": np.arange(4, 9, dtype="u2")}, tmp_path / "t.safetensors")
    assert read_back(token_layout(tmp_path / "t.safetensors", tensor="b")).tolist() == [4, 5, 6, 7, 8]
    with pytest.raises(FormatError, match="expected a tensor 'c', got 2 tensors: 'a', 'b'"):
        token_layout(tmp_path / "t.safetensors", tensor="c")
    with lowtide.open_tokens(tmp_path / "t.safetensors", tensor="a") as tokens:
        assert tokens[:].tolist() == [0, 1, 2, 3]


def peak_of(opened: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        opened()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_hostile_header_is_refused_within_32_times_its_size(tmp_path: Path) -> None:
    lists = b"[" + b"[]," * 100_000 + b"[]]"
    objects = '["\U0001f600",'.encode() + b"{}," * 100_000 + b"{}]"
    texts = b'"' + b"x" * len(lists) + b'"'
    nested = b'{"w":{"dtype":"F32","shape":%s,"data_offsets":[0,24]}}'
    spaces = b"{" + b" " * len(lists) + b"}"
    headers = (nested % lists, nested % objects, nested % texts, b'{"w":' + lists + b"}", spaces, lists)
    for header in headers:
        path = write(tmp_path / "m.safetensors", header, bytes(24))

        def refused(path: Path = path) -> None:
            with pytest.raises(FormatError):
                layout_of(path, tensor="w")

        assert peak_of(refused) < 32 * len(header)


def test_a_header_of_5_000_tensors_takes_a_few_times_its_size(tmp_path: Path) -> None:
    count = 5_000
    entries = (f'"layer.{k}":{{"dtype":"U8","shape":[1],"data_offsets":[{k},{k + 1}]}}' for k in range(count))
    header = ("{" + ",".join(entries) + "}").encode()
    path = write(tmp_path / "m.safetensors", header, bytes(count))
    layouts: list[Layout] = []
    assert peak_of(lambda: layouts.append(layout_of(path, tensor="layer.4999"))) < 12 * len(header)
    assert layouts[0].extents[0].offset == path.stat().st_size - 1


def test_a_header_beyond_the_cap_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    with path.open("wb") as file:
        file.write(struct.pack("<Q", 100_000_001) + b"{}")
        file.truncate(100_000_100)  # sparse: the file could hold it

    def refused() -> None:
        with pytest.raises(FormatError, match="header of 2 to 100000000 bytes"):
            layout_of(path)

    assert peak_of(refused) < 2**20


def test_metadata_of_any_size_is_let_pass(tmp_path: Path, read_back: ReadBack) -> None:
    wanted = np.arange(6, dtype="f4").reshape(2, 3)
    text = 'a "quoted" \\ line\n\u00e9' * 200_000
    save_file({"w": wanted}, tmp_path / "m.safetensors", {"notes": text, "empty": ""})
    assert np.array_equal(read_back(layout_of(tmp_path / "m.safetensors")), wanted)


@pytest.mark.parametrize("name", ['quoted "name"', "back\\slash", "\u00e9t\u00e9", "\U0001f600", "", "tab\t"])
def test_a_name_with_escapes_is_found(tmp_path: Path, name: str) -> None:
    save_file({name: np.zeros(3), "other": np.zeros(2)}, tmp_path / "m.safetensors")
    assert layout_of(tmp_path / "m.safetensors", tensor=name).shape == (3,)
    assert {member.name for member in members_of(str(tmp_path / "m.safetensors"))} == {name, "other"}


def test_an_escaped_name_given_twice_is_refused(tmp_path: Path) -> None:
    entry = b'{"dtype":"U8","shape":[12],"data_offsets":[%d,%d]}'
    header = b'{"w": ' + entry % (0, 12) + b', "\\u0077": ' + entry % (12, 24) + b"}"
    with pytest.raises(FormatError, match="a key twice"):
        layout_of(write(tmp_path / "m.safetensors", header, bytes(24)), tensor="w")


def test_white_space_between_and_behind_is_allowed(tmp_path: Path) -> None:
    header = json.dumps({"__metadata__": {}, **one()}, indent=3).encode() + b" " * 300_000
    assert layout_of(write(tmp_path / "m.safetensors", header, bytes(24))).shape == (2, 3)


def test_tensor_needs_a_safetensors_file(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros(3))
    with pytest.raises(FormatError, match="safetensors"):
        layout_of(tmp_path / "a.npy", tensor="w")


ATTACKS: dict[str, Any] = {
    "no JSON": b"{nonsense",
    "a list": [1, 2],
    "bad UTF-8": b'{"\xff": 1}',
    "a key twice": b'{"w": {"dtype":"U8","shape":[24],"data_offsets":[0,24]}, '
    b'"w": {"dtype":"I8","shape":[24],"data_offsets":[0,24]}}',
    "deep nesting": b'{"a":' * 5000,
    "deep lists": b"[" * 100_000,
    "a number of 10,000 digits": b'{"w": ' + b"9" * 10_000 + b"}",
    "a shape nested as deep as JSON goes": b'{"w":{"dtype":"F32","shape":'
    + b"[" * 900
    + b"]" * 900
    + b',"data_offsets":[0,24]}}',
    "UTF-16": json.dumps(one()).encode("utf-16"),
    "not a number": b'{"w":{"dtype":"F32","shape":[NaN,3],"data_offsets":[0,24]}}',
    "metadata that is no object": {**one(), "__metadata__": 3},
    "metadata of numbers": {**one(), "__metadata__": {"k": 3}},
    "a key twice inside a tensor": b'{"w":{"dtype":"U8","dtype":"I8","shape":[24],"data_offsets":[0,24]}}',
    "text behind the last bracket": json.dumps(one()).encode() + b" x",
    "no dtype": {"w": {"shape": [24], "data_offsets": [0, 24]}},
    "an unknown dtype": one("Q4"),
    "a dtype that is no text": one(["F32"]),  # type: ignore[arg-type]
    "a negative axis": one(shape=(-2, -3)),
    "an axis that is no integer": one(shape=(2.0, 3)),
    "a bool as axis": one(shape=(True, 6)),
    "a product that overflows": one(shape=(2**40, 2**40)),
    "offsets beyond the file": one(shape=(4, 3), offsets=(0, 48)),
    "offsets the wrong way round": one(offsets=(24, 0)),
    "negative offsets": one(offsets=(-24, 0)),
    "three offsets": one(offsets=(0, 24, 48)),
    "a size that is not the shape's": one(shape=(2, 2)),
    "a hole": one(offsets=(4, 28)),
    "an overlap": {**one(), "v": one()["w"]},
    "bytes left over": one(shape=(1, 3), offsets=(0, 12)),
    "a single value": {"w": {"dtype": "F32", "shape": [], "data_offsets": [0, 4]}},
}


@pytest.mark.parametrize("header", ATTACKS.values(), ids=ATTACKS.keys())
def test_a_hostile_header_is_a_format_error(tmp_path: Path, header: object) -> None:
    data = bytes(4) if header == ATTACKS["a single value"] else bytes(24)
    with pytest.raises(FormatError) as caught:
        layout_of(write(tmp_path / "m.safetensors", header, data), tensor="w")
    assert len(str(caught.value)) < 700


@pytest.mark.parametrize("length", [0, 1, 10**6, 2**63, 2**64 - 1])
def test_a_header_length_the_file_cannot_hold_is_refused(tmp_path: Path, length: int) -> None:
    with pytest.raises(FormatError, match="header of 2 to"):
        layout_of(write(tmp_path / "m.safetensors", one(), bytes(24), length=length))


def test_a_file_cut_at_any_byte_is_refused(tmp_path: Path) -> None:
    whole = write(tmp_path / "m.safetensors", one(), bytes(24)).read_bytes()
    for length in range(len(whole)):
        (tmp_path / "m.safetensors").write_bytes(whole[:length])
        with pytest.raises(FormatError):
            layout_of(tmp_path / "m.safetensors")
