"""The bytes inside .gz and .zst files, a bounded amount at a time.

Feeds a decompressor from a plain read loop, so that damage and a missing end are errors with the file and the
compressed offset, never a shorter text. Several members or frames in one file are read as one. zstandard unpacks all
its input at once, and a few bytes may unpack to any amount, so it is fed one block at a time: at most 128 KiB of text.
Costs one input buffer and the decompressor's own window. isal unpacks .gz where it is installed, else zlib;
zstandard is imported only for .zst.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, BinaryIO

from lowtide.errors import FormatError, LowtideError
from lowtide.prepare.resources import refuse_little_memory
from lowtide.units import MIB

_zlib: Any = zlib
with suppress(ImportError):
    from isal import isal_zlib

    _zlib = isal_zlib  # the same calls, almost three times as fast

_READ = 256 * 1024
_MOST = 1024 * 1024  # bytes yielded at once
_LONGEST_WINDOW = 2**27  # what `zstd --long` needs; more is refused by zstd itself too
_BESIDE_WINDOW = 32 * MIB  # to unpack and encode
_LONGEST_HEADER, _SMALL = 18, 64
_FRAME, _SKIPPED = (
    b"\x28\xb5\x2f\xfd",
    b"\x2a\x4d\x18",
)  # how a frame begins, and how a skippable one does after its first byte


def decompressed(path: str, compression: str) -> Iterator[tuple[bytes, int]]:
    """(text, compressed bytes read so far) to the end; FormatError if the file is damaged or cut."""
    make, errors = _maker(path, compression)
    decoder, done = make(), 0
    begun = False  # whether the decoder has seen a byte of its member
    with open(path, "rb", buffering=_READ) as file:  # noqa: PTH123
        for data in _blocks(path, file) if compression == "zstd" else iter(lambda: file.read(_READ), b""):
            done += len(data)
            while data:
                try:
                    if compression == "gzip":
                        text = decoder.decompress(data, _MOST)
                        data = decoder.unused_data.lstrip(b"\0") if decoder.eof else decoder.unconsumed_tail
                    else:
                        text = decoder.decompress(data)
                        data = decoder.unused_data
                except errors as problem:
                    raise FormatError(
                        f"{path}: expected undamaged {compression} data, got damage before compressed byte {done}: "
                        f"{problem}. Download it again or leave it out."
                    ) from problem
                begun = not decoder.eof
                if decoder.eof:
                    decoder = make()
                if text:
                    yield text, done
    if begun or done == 0:
        raise FormatError(
            f"{path}: expected complete {compression} data, got {done} bytes that stop in the middle. "
            "Download it again or leave it out."
        )


def _blocks(path: str, file: BinaryIO) -> Iterator[bytes]:
    """The bytes of a .zst file, cut where its blocks end. Damage is left for the decompressor to report."""
    import zstandard

    while start := file.read(4):
        if start[1:] == _SKIPPED and 0x50 <= start[0] < 0x60:
            size = file.read(4)
            yield start + size
            left = int.from_bytes(size, "little")
            while some := file.read(min(left, _READ)):
                left -= len(some)
                yield some
            continue
        head = start + file.read(_LONGEST_HEADER - 4) if start == _FRAME else start
        try:
            about, size_of_head = zstandard.get_frame_parameters(head), zstandard.frame_header_size(head)
        except zstandard.ZstdError:
            yield head  # damage
            yield from iter(lambda: file.read(_SMALL), b"")
            return
        refuse_little_memory(path, min(_LONGEST_WINDOW, about.window_size) + _BESIDE_WINDOW)
        file.seek(size_of_head - len(head), os.SEEK_CUR)
        yield head[:size_of_head]
        last = False
        while not last and (three := file.read(3)):
            number = int.from_bytes(three, "little")
            last = bool(number & 1)
            # A block of one repeated byte stores that byte once.
            yield three + file.read(1 if number >> 1 & 3 == 1 else number >> 3)
        if last and about.has_checksum:
            yield file.read(4)


def _maker(path: str, compression: str) -> tuple[Callable[[], Any], type[Exception]]:
    if compression == "gzip":
        return lambda: _zlib.decompressobj(wbits=31), _zlib.error
    try:
        import zstandard
    except ModuleNotFoundError:
        raise LowtideError(
            f"{path}: expected zstandard to read it, got none. Install it with: pip install 'lowtide[prepare]'"
        ) from None
    return zstandard.ZstdDecompressor(max_window_size=_LONGEST_WINDOW).decompressobj, zstandard.ZstdError
