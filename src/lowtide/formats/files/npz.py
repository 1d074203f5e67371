"""One member of an .npz archive, read where it lies.

    zip: local header 30 bytes + name + extra | a .npy file: stored by np.savez, deflated by np.savez_compressed

A member that is stored, not deflated, is a .npy file at an offset of the archive, so its rows are read like those of
any .npy. Costs the archive's directory, of at most 16 MiB, and one header. Checksums are not checked: that would read
all of the data. Deflated and encrypted members are refused, naming the line that saves them again.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from lowtide.errors import FormatError
from lowtide.formats.files import npy
from lowtide.formats.files.members import ArrayMember
from lowtide.formats.header import HeaderFile
from lowtide.formats.layout import Layout, clip
from lowtide.formats.refusals import TORCH_ZIP, ZIP, as_typed

if TYPE_CHECKING:
    from zipfile import ZipInfo

WHAT = "member"
MAGICS = (b"PK\x03\x04", b"PK\x05\x06")
_MOST_DIRECTORY = 16 * 1024 * 1024
_LOCAL_HEADER = 30


def read(file: HeaderFile, name: str) -> Layout | None:
    """The layout of the member of that name (``a`` and ``a.npy`` are the same); ``None`` if there is none."""
    for info in _arrays(file):
        if name in (info.filename, _short(info.filename)):
            return _layout(file, info)
    return None


def members(file: HeaderFile) -> Iterator[ArrayMember]:
    """Every array of the archive."""
    for info in _arrays(file):
        name = _short(info.filename)
        try:
            layout = _layout(file, info)
        except FormatError as problem:
            yield ArrayMember(name, "?", (), _why_not(file, info) or str(problem))
        else:
            yield ArrayMember(name, str(layout.dtype), layout.shape, integers=layout.dtype.kind in "iu")


def _arrays(file: HeaderFile) -> list[ZipInfo]:
    import zipfile  # here: most files are not archives, and it takes 10 ms

    try:
        with _Bounded(file) as data, zipfile.ZipFile(data) as archive:
            entries = archive.infolist()
    except (zipfile.BadZipFile, ValueError, OSError, NotImplementedError, EOFError, OverflowError) as error:
        if isinstance(error, FormatError):
            raise
        raise FormatError(
            f"{file.path}: expected a whole zip archive, got one whose directory cannot be read ({clip(str(error))}). "
            "It is cut short or damaged: copy or write it again."
        ) from error
    found = [info for info in entries if info.filename.endswith(".npy")]
    if not found:
        torch = any(info.filename.endswith("data.pkl") for info in entries)
        raise (TORCH_ZIP if torch else ZIP).refusal(file.path, tokens=False)
    return found


def _layout(file: HeaderFile, info: ZipInfo) -> Layout:
    why_not = _why_not(file, info)
    where = f"member {clip(_short(info.filename))}"
    if why_not:
        raise FormatError(f"{file.path}, {where}: expected a stored member, got {why_not}.")
    start, size = _data_start(file, info), info.file_size
    return replace(npy.read(file.part(where, start, size)), format="npz")


def _why_not(file: HeaderFile, info: ZipInfo) -> str:
    """Why a member cannot be read in place, and what to do; empty if it can."""
    name = as_typed(file.path)
    if info.flag_bits & 0x1:
        return "an encrypted one. Unpack it with its password: unzip " + repr(name)
    if info.compress_type != 0:
        return f"a compressed one. Save it uncompressed: np.savez('stored.npz', **np.load({name!r}))"
    return ""


def _data_start(file: HeaderFile, info: ZipInfo) -> int:
    """The position after the local header, whose name and extra field have lengths of their own."""
    head = file.read(info.header_offset, _LOCAL_HEADER) if info.header_offset >= 0 else b""
    if len(head) < _LOCAL_HEADER or not head.startswith(MAGICS[0]):
        raise FormatError(
            f"{file.path}: expected member {clip(info.filename)} at byte {info.header_offset}, got no zip header "
            "there. It is damaged: copy or write it again."
        )
    start = info.header_offset + _LOCAL_HEADER + int.from_bytes(head[26:28], "little")
    start += int.from_bytes(head[28:30], "little")
    if info.file_size != info.compress_size or start + info.file_size > file.size:
        raise FormatError(
            f"{file.path}: expected member {clip(info.filename)} to end by byte {file.size}, got "
            f"{start + info.file_size}. It is cut short: copy or write it again."
        )
    return start


def _short(name: str) -> str:
    return name.removesuffix(".npy")


class _Bounded(io.RawIOBase):
    """The archive as zipfile wants it, except that no read may be larger than a directory."""

    def __init__(self, file: HeaderFile) -> None:
        self._file, self._at = file, 0

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        self._at = max(0, offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._file.size}[whence])
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, size: int | None = -1, /) -> bytes:
        left = max(0, self._file.size - self._at)
        size = left if size is None or size < 0 else min(size, left)
        if size > _MOST_DIRECTORY:
            raise FormatError(
                f"{self._file.path}: expected a zip directory of at most {_MOST_DIRECTORY} bytes, got {size}. "
                "Save fewer arrays in one archive."
            )
        found = self._file.read(self._at, size)
        self._at += len(found)
        return found
