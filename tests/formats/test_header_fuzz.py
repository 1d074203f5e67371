"""Thousands of damaged headers: only typed errors come out, nothing large is allocated, nothing false is believed."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from safetensors.numpy import save_file

from lowtide.errors import FormatError
from lowtide.formats import Layout, document_ends, dtype_smell, layout_of, token_layout

if TYPE_CHECKING:
    from tests.formats.conftest import TokenFiles

ROUNDS = 300  # for each of eight kinds of file; `make torture` makes as many as you have time for


def damaged(rng: random.Random, content: bytes, reach: int) -> bytes:
    """One to four edits in the first ``reach`` bytes, or a cut, or something appended."""
    data = bytearray(content)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(max(1, min(reach, len(data))))
        edit = rng.randrange(7)
        if edit == 0 and data:
            data[at] ^= 1 << rng.randrange(8)
        elif edit == 1 and data:
            data[at] = rng.choice(b"\0\xff()[]{}',:-0129TFLO<>|\\")
        elif edit == 2:
            data[at : at + rng.randint(1, 8)] = rng.randbytes(rng.randint(0, 8))
        elif edit == 3:
            data[at : at + 8] = rng.choice([b"\xff" * 8, b"\0" * 8, b"\xff" * 7 + b"\x7f", b"\1" + bytes(7)])
        elif edit == 4:
            piece = data[at : at + rng.randint(1, 20)]
            data[at:at] = piece * rng.randint(1, 3)
        elif edit == 5:
            del data[len(data) - rng.randint(0, min(len(data), 20)) :]
        else:
            data += rng.randbytes(rng.randint(1, 9))
    return bytes(data)


def sound_files(files: TokenFiles) -> dict[str, tuple[Path, int]]:
    """Each kind of file, and how many of its first bytes are worth damaging."""
    directory = files.directory
    np.save(directory / "plain.npy", np.arange(40, dtype="<u2").reshape(5, 8))
    np.save(directory / "records.npy", np.zeros(3, [("a", "<f4"), ("b", ">i8", (2, 3)), ("c", [("d", "S3")])]))
    save_file({"w": np.arange(6, dtype="u2"), "v": np.zeros((2, 2), "f4")}, directory / "m.safetensors")
    manifest_shard = files.raw("listed.bin", [1, 2, 3])
    return {
        "npy": (directory / "plain.npy", 128),
        "records": (directory / "records.npy", 200),
        "safetensors": (directory / "m.safetensors", 150),
        "llm.c": (files.llmc("a.bin", [1, 2, 3]), 16),
        "lit-gpt": (files.litgpt("b.bin", [1, 2, 3]), 24),
        "megatron": (files.megatron("c", [[1, 2], [3], [4, 5]]).with_suffix(".idx"), 110),
        "datatrove": (files.datatrove("d.ds", [[1, 2], [3]]).with_name("d.ds.metadata"), 12),
        "manifest": (files.manifest([(manifest_shard.name, 3)], eot=0), 90),
    }


def opened(kind: str, path: Path) -> list[Callable[[], Layout]]:
    if kind == "manifest":
        return [lambda: token_layout(path.parent, dtype="u2"), lambda: token_layout(path.with_name("listed.bin"))]
    if kind == "datatrove":
        return [lambda: token_layout(path.with_name("d.ds"))]
    return [
        lambda: layout_of(path),
        lambda: layout_of(path, dtype="u2"),
        lambda: layout_of(path, tensor="w" if kind == "safetensors" else None),
        lambda: token_layout(path),
    ]


def check(layout: Layout) -> None:
    """What is believed lies inside the files and adds up."""
    for extent, rows in zip(layout.extents, layout.rows, strict=True):
        assert 0 <= extent.offset <= extent.offset + extent.length <= extent.size == Path(extent.path).stat().st_size
        assert rows * layout.row_nbytes == extent.length
    assert sum(layout.rows) == layout.shape[0]
    assert not layout.dtype.hasobject
    dtype_smell(layout)
    for _ in document_ends(layout) or ():
        pass


KINDS = ["npy", "records", "safetensors", "llm.c", "lit-gpt", "megatron", "datatrove", "manifest"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_header_gives_a_layout_that_adds_up_or_a_typed_error(token_files: TokenFiles, kind: str) -> None:
    path, reach = sound_files(token_files)[kind]
    sound = path.read_bytes()
    for attempt in opened(kind, path):
        if kind in ("npy", "records", "safetensors"):
            continue  # not every way of opening suits these even when sound
        check(attempt())
    rng = random.Random(f"lowtide {kind}")
    refused = 0
    for _ in range(ROUNDS):
        path.write_bytes(damaged(rng, sound, reach))
        for attempt in opened(kind, path):
            try:
                check(attempt())
            except (FormatError, OSError):
                refused += 1
    assert refused > ROUNDS / 4  # otherwise the damage is too mild to test anything


def test_what_is_still_believed_of_a_damaged_npy_is_what_numpy_believes(token_files: TokenFiles) -> None:
    path, reach = sound_files(token_files)["npy"]
    sound = path.read_bytes()
    rng = random.Random("lowtide and numpy")
    believed = 0
    for _ in range(3 * ROUNDS):
        content = bytearray(sound)  # of the same length: any other is refused for its size alone
        content[rng.randrange(10, reach)] = rng.choice(b" ()[]{}',:-0123458TFLuifb<>|=\\\n")
        path.write_bytes(content)
        try:
            layout = layout_of(path)
        except (FormatError, OSError):
            continue
        if layout.format == "npy":
            expected = np.load(path)
            assert (layout.dtype, layout.shape) == (expected.dtype, expected.shape)
            assert layout.extents[0].length == expected.nbytes
            believed += 1
    assert believed > 20


def test_hundreds_of_damaged_headers_allocate_less_than_1_mib_each(token_files: TokenFiles) -> None:
    rng = random.Random("lowtide memory")
    for kind, (path, reach) in sound_files(token_files).items():
        sound = path.read_bytes()
        for _ in range(40):
            path.write_bytes(damaged(rng, sound, reach))
            for attempt in opened(kind, path):
                tracemalloc.start()
                try:
                    attempt()
                except (FormatError, OSError):
                    pass
                finally:
                    peak = tracemalloc.get_traced_memory()[1]
                    tracemalloc.stop()
                assert peak < 2**20, kind
        path.write_bytes(sound)
