"""Headers made to hurt: every one ends as FormatError, soon, with little memory."""

from __future__ import annotations

import struct
import tracemalloc
from pathlib import Path

import pytest

from lowtide.errors import FormatError
from lowtide.formats import layout_of


def header(descr: str = "'<u2'", fortran: str = "False", shape: str = "(3,)") -> str:
    return f"{{'descr': {descr}, 'fortran_order': {fortran}, 'shape': {shape}, }}"


ATTACKS = {
    "a product that overflows": header(shape="(4294967296, 4294967296, 4294967296)"),
    "a product that wraps to 6 bytes": header(shape="(9223372036854775811,)"),
    "axes that overflow beside a zero": header(shape="(4294967296, 4294967296, 4294967296, 0)"),
    "a negative axis": header(shape="(-3,)"),
    "two negative axes whose product fits": header(shape="(-1, -3)"),
    "a bool as axis": header(shape="(True, 3)"),
    "text as axis": header(shape="('3',)"),
    "a bare integer as shape": header(shape="3"),
    "a list as shape": header(shape="[3]"),
    "a float as axis": header(shape="(3.0,)"),
    "an axis of 5,000 digits": header(shape=f"({'9' * 5000},)"),
    "1,000 axes": header(shape=f"({'1, ' * 1000})"),
    "fortran_order as an integer": header(fortran="1"),
    "fortran_order as text": header(fortran="'False'"),
    "None": header(fortran="None"),
    "an object dtype": header(descr="'|O'"),
    "an object in a structure": header(descr="[('a', '<f4'), ('b', '|O')]"),
    "an object in a structure in a structure": header(descr="[('a', [('b', [('c', '|O', (2,))])])]"),
    "items of no bytes": header(descr="'|S0'"),
    "items of no bytes, unsized": header(descr="'<U'"),
    "a structure of nothing": header(descr="[]"),
    "void of no bytes": header(descr="'|V0'"),
    "an unknown type": header(descr="'<x9'"),
    "a type with a bad size": header(descr="'<f3'"),
    "a comma list": header(descr="'f4,f4'"),
    "an alias that numpy warns about": header(descr="'|a5'"),
    "a name numpy would look up": header(descr="'numpy.float32'"),
    "an enormous item": header(descr="'|V99999999999'"),
    "a subarray that overflows": header(descr="[('a', '<f4', (2147483647, 2147483647))]"),
    "a subarray of negative size": header(descr="[('a', '<f4', (-1,))]"),
    "a bare 1 as subarray": header(descr="[('a', '<f4', 1)]"),
    "a subarray at the top": header(descr="('<f4', (3,))"),
    "one field twice": header(descr="[('a', '<f4'), ('a', '<f4')]"),
    "a field without a type": header(descr="[('a',)]"),
    "a dict as dtype": header(descr="{'names': ['a'], 'formats': ['<f4']}"),
    "an integer as dtype": header(descr="2"),
    "a bool as dtype": header(descr="True"),
    "a missing key": "{'descr': '<u2', 'shape': (3,), }",
    "a key too many": "{'descr': '<u2', 'fortran_order': False, 'shape': (3,), 'more': 1}",
    "a key twice": "{'descr': '<u2', 'descr': '<u2', 'fortran_order': False, 'shape': (3,), }",
    "a key that is no text": "{1: '<u2', 'fortran_order': False, 'shape': (3,), }",
    "no dict": "[1, 2, 3]",
    "nothing": "",
    "only spaces": " " * 100,
    "a NUL": header() + "\0",
    "a NUL inside": header(descr="'<u2\0'"),
    "two values": header() + header(),
    "an expression": header(shape="(1 + 2,)"),
    "a call": header(shape="(__import__('os').getpid(),)"),
    "an f-string": header(descr="f'<u2'"),
    "bytes": header(descr="b'<u2'"),
    "a comment": header() + "  # so it goes",
    "a line joined": header(shape="(3,\\\n)"),
    "deep parentheses": "(" * 60_000,
    "deep lists": header(descr="[" * 30_000 + "]" * 30_000),
    "deep dicts": "{'a':" * 10_000,
    "deep structures": header(descr="[('a', " * 3_000 + "'<f4'" + ")]" * 3_000),
    "many signs": header(shape="(" + "-" * 60_000 + "3,)"),
    "a text that never ends": header(descr="'" + "a" * 60_000),
    "many backslashes": header(descr="'" + "\\" * 59_999 + "'"),
    "a broken escape": header(descr=r"'\x'"),
    "a lone surrogate in a name": header(descr=r"[('\ud800', '<x4')]"),
    "many numbers": header(shape="(" + "1," * 30_000 + ")"),
}


@pytest.mark.parametrize("text", ATTACKS.values(), ids=ATTACKS.keys())
@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_hostile_header_is_a_format_error_within_32_mib(tmp_path: Path, text: str, version: int) -> None:
    path = tmp_path / "a.npy"
    encoded = text.encode("utf-8")
    lead = b"\x93NUMPY" + bytes([version, 0]) + struct.pack("<H" if version == 1 else "<I", len(encoded))
    path.write_bytes(lead + encoded + bytes(6))
    tracemalloc.start()
    try:
        with pytest.raises(FormatError) as caught:
            layout_of(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 32 * 2**20
    message = str(caught.value)
    assert str(path) in message
    assert len(message) < 600
    assert message.isprintable()


@pytest.mark.parametrize("version", [0, 4, 255])
def test_an_unknown_version_is_refused(tmp_path: Path, version: int) -> None:
    (tmp_path / "a.npy").write_bytes(b"\x93NUMPY" + bytes([version, 0]) + b"\x10\0\0\0" + b" " * 100)
    with pytest.raises(FormatError, match=f"got {version}.0"):
        layout_of(tmp_path / "a.npy")


def test_a_header_length_of_4_gib_allocates_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    path.write_bytes(b"\x93NUMPY\x02\x00\xff\xff\xff\xff")
    with path.open("r+b") as file:
        file.truncate(2**33)  # sparse, so that the length alone is no contradiction
    tracemalloc.start()
    try:
        with pytest.raises(FormatError, match="got 4294967295"):
            layout_of(path)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


def test_the_sound_header_these_attacks_vary_opens(tmp_path: Path) -> None:
    text = header().encode()
    (tmp_path / "a.npy").write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + bytes(6))
    assert layout_of(tmp_path / "a.npy").shape == (3,)
