"""Each token format, from bytes written by hand after its description."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pytest

from lowtide.errors import FormatError
from lowtide.formats import Layout, document_ends, layout_of, token_layout

if TYPE_CHECKING:
    from tests.formats.conftest import TokenFiles

ReadBack = Callable[[Layout], npt.NDArray[Any]]
TOKENS = [50256, 1, 2, 3, 65535, 0, 7]


def test_nanogpt_opens_with_a_stated_dtype_and_never_reads_the_pickle(
    token_files: TokenFiles, read_back: ReadBack
) -> None:
    path = token_files.raw("train.bin", TOKENS)
    (path.parent / "meta.pkl").write_bytes(b"cos\nabort\n(tR.")  # would end the interpreter
    layout = token_layout(path, dtype="uint16")
    assert (layout.format, layout.dtype) == ("nanogpt", np.dtype("u2"))
    assert "meta.pkl" in layout.notes[0]
    assert read_back(layout).tolist() == TOKENS


def test_a_headerless_file_without_a_dtype_is_refused(token_files: TokenFiles) -> None:
    for name in ("train.bin", "part-0.npy", "shard.tokens"):
        with pytest.raises(FormatError, match="expected dtype="):
            token_layout(token_files.raw(name, TOKENS))


def test_olmo_writes_npy_files_without_a_header(token_files: TokenFiles, read_back: ReadBack) -> None:
    path = token_files.raw("part-0-00000.npy", TOKENS, "<u4")
    (path.parent / "part-0-00000.csv.gz").write_bytes(b"")
    layout = token_layout(path, dtype="uint32")
    assert layout.format == "olmo"
    assert len(layout.notes) == 2
    assert read_back(layout).tolist() == TOKENS


def test_a_real_npy_of_one_axis_of_integers_is_a_shard(tmp_path: Path, read_back: ReadBack) -> None:
    np.save(tmp_path / "edufineweb_train_000001.npy", np.array(TOKENS, "u2"))
    layout = token_layout(tmp_path / "edufineweb_train_000001.npy")
    assert layout.format == "npy"
    assert read_back(layout).tolist() == TOKENS


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (np.zeros((3, 4), "u2"), r"one axis, got shape \(3, 4\).*reshape"),
        (np.zeros(3, "f4"), "integers as tokens, got float32"),
        (np.zeros(3, "?"), "integers as tokens, got bool"),
    ],
)
def test_an_npy_that_is_no_run_of_tokens_is_refused(tmp_path: Path, array: npt.NDArray[Any], words: str) -> None:
    np.save(tmp_path / "a.npy", array)
    with pytest.raises(FormatError, match=words):
        token_layout(tmp_path / "a.npy")
    with pytest.raises(FormatError, match=words):
        token_layout(np.load(tmp_path / "a.npy", mmap_mode="r"))


@pytest.mark.parametrize(("magic", "version", "dtype"), [(20240520, 1, "<u2"), (20240801, 7, "<u4")])
@pytest.mark.parametrize("opener", [token_layout, layout_of])
def test_both_token_magics_of_llm_c_open(
    token_files: TokenFiles, read_back: ReadBack, magic: int, version: int, dtype: str, opener: Callable[..., Layout]
) -> None:
    layout = opener(token_files.llmc("fineweb_train_000001.bin", TOKENS, magic=magic, version=version))
    assert (layout.format, layout.dtype, layout.extents[0].offset) == ("llm.c", np.dtype(dtype), 1024)
    assert read_back(layout).tolist() == TOKENS


@pytest.mark.parametrize(("magic", "name"), [(20240522, "evaluation"), (20240527, "state")])
def test_the_other_files_of_llm_c_are_refused_by_name(token_files: TokenFiles, magic: int, name: str) -> None:
    with pytest.raises(FormatError, match=name):
        token_layout(token_files.llmc("x.bin", TOKENS, magic=magic))


@pytest.mark.parametrize("count", [0, 6, 8, 2**31 - 1, -7, -1])
def test_an_llm_c_header_that_lies_is_refused_with_both_sizes(token_files: TokenFiles, count: int) -> None:
    path = token_files.llmc("x.bin", TOKENS, count=count)
    for stated in (None, "uint16"):
        with pytest.raises(FormatError, match=rf"expected {1024 + 2 * count} bytes.*got 1038"):
            token_layout(path, dtype=stated)


def test_dates_that_look_like_llm_c_are_still_numbers(tmp_path: Path, read_back: ReadBack) -> None:
    days = np.stack([20240520 + np.arange(600), np.ones(600, int)], axis=1).astype("<i4")
    days.tofile(tmp_path / "days.i32")
    assert np.array_equal(read_back(layout_of(tmp_path / "days.i32", dtype="i4", shape=(-1, 2))), days)


@pytest.mark.parametrize(("dtype", "code"), [("u1", 1), ("i1", 2), ("<i2", 3), ("<i4", 4), ("<i8", 5), ("<u2", 8)])
def test_lit_gpt_and_megatron_share_their_integer_codes(
    token_files: TokenFiles, read_back: ReadBack, dtype: str, code: int
) -> None:
    tokens = [1, 2, 3, 100, 0]
    packed = token_layout(token_files.litgpt("p.bin", tokens, dtype=dtype, code=code))
    paired = token_layout(token_files.megatron("m", [tokens[:2], tokens[2:]], dtype=dtype, code=code))
    assert (packed.format, packed.extents[0].offset, paired.format) == ("lit-gpt", 24, "megatron")
    for layout in (packed, paired):
        assert layout.dtype == dtype
        assert read_back(layout).tolist() == tokens


def test_codes_6_and_7_are_swapped_between_them(token_files: TokenFiles) -> None:
    packed = [layout_of(token_files.litgpt("p.bin", [1], dtype=d, code=c)) for d, c in (("<f4", 6), ("<f8", 7))]
    assert [layout.dtype for layout in packed] == [np.dtype("f4"), np.dtype("f8")]
    paired = [layout_of(token_files.megatron("m", [[1]], dtype=d, code=c)) for d, c in (("<f8", 6), ("<f4", 7))]
    assert [layout.dtype for layout in paired] == [np.dtype("f8"), np.dtype("f4")]
    for name in ("p.bin", "m.bin"):
        with pytest.raises(FormatError, match="integers as tokens"):
            token_layout(token_files.directory / name)


@pytest.mark.parametrize(("dtype", "code"), [("<u2", 6), ("<u4", 7), ("<u8", 8)])
def test_deepspeed_s_codes_are_told_from_megatron_s_by_the_pointers(
    token_files: TokenFiles, read_back: ReadBack, dtype: str, code: int
) -> None:
    path = token_files.megatron("d", [[1, 2], [], [50_256, 4, 5]], dtype=dtype, code=code)
    layout = token_layout(path)
    assert layout.dtype == dtype
    assert read_back(layout).tolist() == [1, 2, 50_256, 4, 5]
    assert "DeepSpeed" in layout.notes[0]
    assert [int(end) for block in document_ends(layout) or () for end in block] == [2, 2, 5]


def test_floats_of_megatron_s_code_7_are_no_tokens(token_files: TokenFiles) -> None:
    path = token_files.megatron("m", [[0, 1], [2]], dtype="<f4", code=7)
    with pytest.raises(FormatError, match="integers as tokens, got float32"):
        token_layout(path)
    assert layout_of(path).dtype == np.float32


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("pointer", [2**63 - 1, 2**63 - 2, -(2**63)])
def test_a_hostile_megatron_pointer_is_refused_without_a_warning(token_files: TokenFiles, pointer: int) -> None:
    for at in (46, 54, 62):
        path = token_files.megatron("m", [[1, 2], [3], [4, 5, 6]])
        patched(path.with_suffix(".idx"), at, struct.pack("<q", pointer))
        with pytest.raises(FormatError):
            token_layout(path)


def test_what_was_not_read_of_megatron_and_lit_gpt_is_noted(token_files: TokenFiles) -> None:
    assert "mode" in token_layout(token_files.megatron("m", [[1]], modes=True)).notes[0]
    assert token_layout(token_files.megatron("m", [[1]])).notes == ()
    assert "separator" in token_layout(token_files.litgpt("p.bin", [1])).notes[0]


@pytest.mark.parametrize("magic", [20240520, 20240801])
def test_llm_c_s_magic_says_nothing_about_the_tokenizer(token_files: TokenFiles, magic: int) -> None:
    layout = token_layout(token_files.llmc("x.bin", [1, 50256, 2], magic=magic, version=1 if magic == 20240520 else 7))
    assert (layout.eot, layout.bos, layout.vocab) == (None, None, None)


def test_a_lit_gpt_header_that_lies_is_refused(token_files: TokenFiles) -> None:
    path = token_files.litgpt("p.bin", TOKENS)
    sound = path.read_bytes()
    lies = {
        "expected 40 bytes": b"LITPKDS" + struct.pack("<QBQ", 1, 8, 8),
        "2\\*\\*63": b"LITPKDS" + struct.pack("<QBQ", 1, 8, 2**63),
        "version 2": b"LITPKDS" + struct.pack("<QBQ", 2, 8, 7),
        "code 9": b"LITPKDS" + struct.pack("<QBQ", 1, 9, 7),
    }
    for words, header in lies.items():
        path.write_bytes(header + sound[24:])
        with pytest.raises(FormatError, match=words):
            token_layout(path)


def test_megatron_opens_by_its_bin_its_idx_or_its_prefix(token_files: TokenFiles, read_back: ReadBack) -> None:
    path = token_files.megatron("my_text_document", [[1, 2], [3], [4, 5, 6]], modes=True)
    layouts = [token_layout(p) for p in (path, path.with_suffix(".idx"), path.with_suffix(""))]
    assert layouts[0] == layouts[1] == layouts[2]
    assert read_back(layouts[0]).tolist() == [1, 2, 3, 4, 5, 6]
    with pytest.raises(FormatError, match=r"expected dtype uint16.*got dtype=uint32"):
        token_layout(path, dtype="uint32")


def patched(path: Path, offset: int, data: bytes) -> None:
    content = bytearray(path.read_bytes())
    content[offset : offset + len(data)] = data
    path.write_bytes(content)


# Three sequences of 2, 1 and 3 uint16: lengths at 34, pointers at 46, boundaries 0 1 2 3 at 70.
MEGATRON_LIES = {
    "version 2": (9, struct.pack("<Q", 2)),
    "code 0": (17, b"\0"),
    "expected 106 bytes": (18, struct.pack("<Q", 3 + 0)),
    "for 4 sequences": (18, struct.pack("<Q", 4)),
    "for 18446744073709551615 sequences": (18, struct.pack("<Q", 2**64 - 1)),
    "expected sequence 1 at byte 4, got 6": (54, struct.pack("<q", 6)),
    "expected sequence 1 at byte 6, got 4": (34, struct.pack("<i", 3)),
    "first sequence at byte 0": (46, struct.pack("<q", 2)),
    "negative": (38, struct.pack("<i", -1)),
    "expected 14 bytes as": (42, struct.pack("<i", 4)),
    "boundaries from 0 to 3, got 1": (70, struct.pack("<q", 1)),
    "boundaries from 0 to 3, got 0 to 4": (94, struct.pack("<q", 4)),
}


@pytest.mark.parametrize("words", [w for w in MEGATRON_LIES if w != "expected 106 bytes"])
def test_a_megatron_index_that_lies_is_refused(token_files: TokenFiles, words: str) -> None:
    path = token_files.megatron("m", [[1, 2], [3], [4, 5, 6]])
    patched(path.with_suffix(".idx"), *MEGATRON_LIES[words])
    with pytest.raises(FormatError, match=words if "first" not in words else "sequence"):
        token_layout(path)


def test_a_megatron_gap_anywhere_in_a_small_index_is_found(token_files: TokenFiles) -> None:
    count = 5_000
    path = token_files.megatron("m", [[1]] * count)
    for k in (1, 511, 512, 513, 2_500, count - 1):
        sound = path.with_suffix(".idx").read_bytes()
        patched(path.with_suffix(".idx"), 34 + 4 * count + 8 * k, struct.pack("<q", 2 * k + 2))
        with pytest.raises(FormatError, match="gaps"):
            token_layout(path)
        path.with_suffix(".idx").write_bytes(sound)
    assert token_layout(path).shape == (count,)


def test_megatron_data_of_another_length_or_missing_is_refused(token_files: TokenFiles) -> None:
    path = token_files.megatron("m", [[1, 2], [3]])
    path.write_bytes(bytes(8))
    with pytest.raises(FormatError, match=r"expected 6 bytes as .*m\.idx says, got 8"):
        token_layout(path)
    path.unlink()
    with pytest.raises(FormatError, match="no such file"):
        token_layout(path.with_suffix(".idx"))


def test_an_idx_of_another_kind_beside_a_bin_is_passed_over(token_files: TokenFiles) -> None:
    path = token_files.raw("x.bin", TOKENS)
    path.with_suffix(".idx").write_bytes(b"something else")
    assert token_layout(path, dtype="u2").format == "nanogpt"


def test_a_stated_dtype_makes_open_read_the_bin_as_plain_numbers(token_files: TokenFiles) -> None:
    path = token_files.megatron("m", [[1, 2], [3, 4]])
    assert layout_of(path).format == "megatron"
    assert layout_of(path, dtype="u2", shape=(-1, 2)).shape == (2, 2)


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("beside", [{"metadata": False}, {"index": False}, {}])
def test_datatrove_tells_its_dtype_beside_the_file(
    token_files: TokenFiles, read_back: ReadBack, size: int, beside: dict[str, bool]
) -> None:
    layout = token_layout(token_files.datatrove("00000.ds", [[1, 2, 3], [4], [5, 6]], size=size, **beside))
    assert (layout.format, layout.dtype.itemsize) == ("datatrove", size)
    assert read_back(layout).tolist() == [1, 2, 3, 4, 5, 6]


def test_datatrove_without_anything_beside_it_needs_a_dtype(token_files: TokenFiles) -> None:
    path = token_files.datatrove("00000.ds", [[1, 2]], metadata=False, index=False)
    with pytest.raises(FormatError, match="expected dtype="):
        token_layout(path)
    assert token_layout(path, dtype="u2").shape == (2,)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        (".metadata", b"gpt2|3\n6\n"),
        (".metadata", b""),
        (".metadata", b"gpt2|4\n6\n"),
        (".metadata", b"\xff" * 100_000),
        (".index", b""),
        (".index", bytes(7)),
        (".index", struct.pack("<Q", 5)),
        (".index", struct.pack("<Q", 2**64 - 1)),
    ],
)
def test_a_datatrove_sidecar_that_lies_is_refused(token_files: TokenFiles, name: str, content: bytes) -> None:
    path = token_files.datatrove("00000.ds", [[1, 2, 3], [4], [5, 6]])
    Path(f"{path}{name}").write_bytes(content)
    with pytest.raises(FormatError):
        token_layout(path)


def test_a_dtype_for_tokens_must_be_of_integers(token_files: TokenFiles) -> None:
    with pytest.raises(ValueError, match="integers"):
        token_layout(token_files.raw("x.bin", TOKENS), dtype="float32")


def test_files_with_headers_cut_at_any_byte_are_refused(token_files: TokenFiles) -> None:
    paths = [
        token_files.llmc("a.bin", TOKENS),
        token_files.litgpt("b.bin", TOKENS),
        token_files.megatron("c", [[1, 2], [3]]).with_suffix(".idx"),
        token_files.datatrove("d.ds", [TOKENS]),
    ]
    for path in paths:
        whole = path.read_bytes()
        for length in range(len(whole)):
            path.write_bytes(whole[:length])
            with pytest.raises(FormatError):
                token_layout(path)
        path.write_bytes(whole)
        token_layout(path)
