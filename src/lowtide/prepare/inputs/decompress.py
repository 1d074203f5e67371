"""The bytes inside .gz and .zst files, a bounded amount at a time.

Feeds a decompressor from a plain read loop, so that damage and a missing end are errors with the file and the
compressed offset, never a shorter text. Several members or frames in one file are read as one. Costs one input buffer
and the decompressor's own window. zstandard is imported only for .zst.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Callable, Iterator
from typing import Any

from lowtide.errors import FormatError, LowtideError
from lowtide.prepare.resources import refuse_little_memory

_READ = {"gzip": 256 * 1024, "zstd": 64 * 1024}  # zstd gives all it can for what it gets: a little at a time
_MOST = 1024 * 1024  # bytes given out at once
_LONGEST_WINDOW = 2**27  # what `zstd --long` needs; more is refused by zstd itself too


def decompressed(path: str, compression: str) -> Iterator[tuple[bytes, int]]:
    """(text, compressed bytes read so far), whole: FormatError where the file is damaged or cut."""
    make, errors = _maker(path, compression)
    decoder, done = make(), 0
    begun = False  # whether the decoder has seen a byte of its member
    with open(path, "rb", buffering=0) as file:  # noqa: PTH123
        while data := file.read(_READ[compression]):
            if done == 0 and compression == "zstd":
                _refuse_large_window(path, data)
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
                        f"{path}: expected whole {compression} data, got damage before compressed byte {done}: "
                        f"{problem}. Download it again or leave it out."
                    ) from problem
                begun = not decoder.eof
                if decoder.eof:
                    decoder = make()
                if text:
                    yield text, done
    if begun or done == 0:
        raise FormatError(
            f"{path}: expected {compression} data with its end, got {done} bytes that stop in the middle. "
            "Download it again or leave it out."
        )


def _refuse_large_window(path: str, data: bytes) -> None:
    """BudgetError where unpacking would hold more than there is: ``zstd --long`` looks back up to 128 MiB."""
    import zstandard

    with contextlib.suppress(zstandard.ZstdError):  # damage is told where it is unpacked
        refuse_little_memory(path, 2 * min(_LONGEST_WINDOW, zstandard.get_frame_parameters(data).window_size))


def _maker(path: str, compression: str) -> tuple[Callable[[], Any], type[Exception]]:
    if compression == "gzip":
        return lambda: zlib.decompressobj(wbits=31), zlib.error
    try:
        import zstandard
    except ModuleNotFoundError:
        raise LowtideError(
            f"{path}: expected zstandard to read it, got none. Install it with: pip install 'lowtide[prepare]'"
        ) from None
    return zstandard.ZstdDecompressor(max_window_size=_LONGEST_WINDOW).decompressobj, zstandard.ZstdError
