"""From a section to blocks of whole documents, still text.

Reading and encoding are two steps with plain bytes between them, so that a block can be read where the file is and
encoded somewhere else. A section of a plain file holds the documents that *begin* in it: its reader looks for the first
separator and reads on past the end to finish the last document. Costs one block of `TEXT_BLOCK` bytes, or the longest
document. Nothing is decoded or parsed here.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

from lowtide.corpus.request import Request
from lowtide.errors import FormatError, ReadError
from lowtide.prepare.inputs.decompress import decompressed
from lowtide.prepare.inputs.listing import Input
from lowtide.prepare.inputs.parquet_text import column_texts
from lowtide.prepare.inputs.sections import LARGE_DOCUMENT, TEXT_BLOCK, InputSection, overlaps_itself, separator_of
from lowtide.units import format_size

LONGEST = 256 * 1024 * 1024  # of a document between separators: a file that lacks them must not fill the memory
_LOOK = 64 * 1024  # how far behind a mark a line end is looked for when a large document is cut
_MORE = 256 * 1024  # read at a time while a border is looked for


@dataclass(frozen=True)
class TextBlock:
    """Whole documents as they stand in the input, and where they came from."""

    section: int
    number: int  # number of this block in its section
    kind: str  # "documents": payload is a list; "lines", "separator", "jsonl": bytes to be taken apart
    payload: bytes | list[bytes]
    paths: tuple[str, ...]  # one for each document of a list of files, else one for all
    first: int = 0  # where the payload begins in its file (in the text, for a compressed one)
    line: int = 0  # number of its first line; 0: not known
    weight: int = 0  # bytes of input this stands for, for progress
    continues: bool = False  # the first document began in the block before
    opens: bool = False  # the last document goes on in the next block


def text_blocks(section: InputSection, request: Request, skip: int = 0) -> Iterator[TextBlock]:
    """The blocks of a section in order, without the first ``skip``."""
    one = section.source
    if one.kind == "parquet":
        blocks = _parquet(section, request)
    elif one.compression or section.streamed:
        separator = separator_of(one, request)
        blocks = _streamed(section, separator) if separator else _streamed_document(section)
    elif one.kind == "text":
        blocks = _small_files(section) if section.end == 0 else _slice(section)
    else:
        blocks = _range(section, separator_of(one, request))
    return (block for block in blocks if block.number >= skip)


def slice_end(text: bytes, mark: int) -> int:
    """Where a large document is cut near ``mark``: behind the next line end, else before the next character."""
    line = text.find(b"\n", mark, mark + _LOOK)
    if line >= 0:
        return line + 1
    while mark < len(text) and text[mark] & 0xC0 == 0x80:  # inside a UTF-8 character
        mark += 1
    return mark


def _small_files(section: InputSection) -> Iterator[TextBlock]:
    payload = [_whole(one) for one in section.inputs]
    paths = tuple(one.path for one in section.inputs)
    yield TextBlock(section.number, 0, "documents", payload, paths, weight=sum(map(len, payload)))


def _slice(section: InputSection) -> Iterator[TextBlock]:
    """A slice of one document that is too large to encode at once; its neighbours hold the rest."""
    one = section.source
    with _Opened(one) as file:
        begin = section.begin
        if begin:
            begin += slice_end(file.read(begin, _LOOK + 4), 0)
        end = section.end
        if end < one.size:
            end += slice_end(file.read(end, _LOOK + 4), 0)
        text = file.read(begin, end - begin)
    yield TextBlock(
        section.number,
        0,
        "documents",
        [text],
        (one.path,),
        first=begin,
        weight=section.weight,
        continues=section.begin > 0,
        opens=section.end < one.size,
    )


def _range(section: InputSection, separator: bytes) -> Iterator[TextBlock]:
    """The documents that begin in ``[begin, end)``: find both borders first, then read once, without a copy."""
    one, size = section.source, len(separator)
    with _Opened(one) as file:
        begin = 0
        if section.begin:
            # A document begins where a separator ends; one that ends at `begin` began `size` bytes before.
            found = file.find(separator, max(0, section.begin - size), section.end)
            if found is None or found + size >= section.end:
                return  # no document begins here
            begin = found + size
        # The separator that ends at `end` or later closes the last document.
        end = file.find(separator, max(begin, section.end - size), one.size) if section.end < one.size else None
        end = one.size if end is None else end
        _refuse_endless(one, begin, end - begin)
        data = file.read(begin, end - begin)
    yield TextBlock(section.number, 0, one.kind, data, (one.path,), begin, 1 if begin == 0 else 0, section.weight)


def _streamed(section: InputSection, separator: bytes) -> Iterator[TextBlock]:
    """Documents of a file that must be read from its beginning."""
    one = section.source
    kept, first, line, number, told, done = bytearray(), 0, 1, 0, 0, 0
    for text, done in _text_of(one):
        kept += text
        if len(kept) < TEXT_BLOCK:
            continue
        end = kept.rfind(separator)
        if end < 0:
            _refuse_endless(one, first, len(kept))
            continue
        if overlaps_itself(separator):
            end = len(kept) - len(kept.split(separator)[-1]) - len(separator)  # counted from the left, as section does
        data = bytes(kept[:end])
        yield TextBlock(section.number, number, one.kind, data, (one.path,), first, line, done - told)
        line += data.count(b"\n") + separator.count(b"\n")
        first += end + len(separator)
        number, told = number + 1, done
        del kept[: end + len(separator)]
    yield TextBlock(section.number, number, one.kind, bytes(kept), (one.path,), first, line, done - told)


def _streamed_document(section: InputSection) -> Iterator[TextBlock]:
    """One compressed document: whole, or in the same slices as the same text in a plain file."""
    one = section.source
    kept, base, number, told, done = bytearray(), 0, 0, 0, 0  # kept[0] is byte ``base`` of the document
    for text, done in _text_of(one):
        kept += text
        # A slice can be cut off once the look behind its mark is certain to be complete.
        while base + len(kept) > max(LARGE_DOCUMENT, (number + 1) * TEXT_BLOCK + _LOOK + 4):
            end = slice_end(bytes(kept[: TEXT_BLOCK + _LOOK + TEXT_BLOCK]), (number + 1) * TEXT_BLOCK - base)
            weight, told = done - told, done
            yield TextBlock(
                section.number,
                number,
                "documents",
                [bytes(kept[:end])],
                (one.path,),
                base,
                weight=weight,
                continues=number > 0,
                opens=True,
            )
            del kept[:end]
            base, number = base + end, number + 1
    if number == 0 and len(kept) <= LARGE_DOCUMENT:
        yield TextBlock(section.number, 0, "documents", [bytes(kept)], (one.path,), 0, weight=done)
        return
    for place, (text, opens) in enumerate(_rest(bytes(kept), base, number)):
        yield TextBlock(
            section.number,
            number + place,
            "documents",
            [text],
            (one.path,),
            base,
            weight=done - told,
            continues=number + place > 0,
            opens=opens,
        )
        base, told = base + len(text), done


def _rest(text: bytes, base: int, number: int) -> Iterator[tuple[bytes, bool]]:
    total = base + len(text)
    while (number + 1) * TEXT_BLOCK < total:
        end = slice_end(text, (number + 1) * TEXT_BLOCK - base)
        yield text[:end], True
        text, base, number = text[end:], base + end, number + 1
    yield text, False


def _parquet(section: InputSection, request: Request) -> Iterator[TextBlock]:
    one = section.source
    with _Opened(one):  # still the file that was planned with
        row, groups = 0, range(section.begin, section.end)
        for number, payload in enumerate(column_texts(one.path, request.column, groups, TEXT_BLOCK)):
            weight = section.weight if number == 0 else 0
            yield TextBlock(section.number, number, "documents", payload, (one.path,), row, weight=weight)
            row += len(payload)


def _text_of(one: Input) -> Iterator[tuple[bytes, int]]:
    if one.compression:
        with _Opened(one):
            yield from decompressed(one.path, one.compression)
        return
    with _Opened(one) as file:
        for at in range(0, one.size, _MORE):
            text = file.read(at, min(_MORE, one.size - at))
            yield text, at + len(text)


def _whole(one: Input) -> bytes:
    with _Opened(one) as file:
        return file.read(0, one.size)


def _refuse_endless(one: Input, first: int, length: int) -> None:
    if length > LONGEST:
        raise FormatError(
            f"{one.path}: expected documents of at most {format_size(LONGEST)}, got a longer one at byte {first}. "
            "Check how its documents are told apart (--lines, --separator)."
        )


class _Opened:
    """An input that is still the file that was listed."""

    def __init__(self, one: Input) -> None:
        self._one = one

    def __enter__(self) -> _Opened:
        self._fd = os.open(self._one.path, os.O_RDONLY | os.O_CLOEXEC)
        status = os.fstat(self._fd)
        if (status.st_size, status.st_mtime_ns) != (self._one.size, self._one.modified):
            os.close(self._fd)
            raise ReadError(
                f"{self._one.path}: expected the {self._one.size} bytes this run was planned with, got a file that "
                "was changed since. Start again in an empty directory.",
                path=self._one.path,
                offset=0,
            )
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    def find(self, separator: bytes, begin: int, end: int) -> int | None:
        """Where the separator first begins in ``[begin, end)``, looking past ``end`` for its own end."""
        reach, first = min(end + len(separator) - 1, self._one.size), begin
        while begin < end and begin - first <= LONGEST:
            found = self.read(begin, min(_MORE, reach - begin)).find(separator)
            if found >= 0:
                return begin + found
            begin += max(1, _MORE - len(separator) + 1)
        return None

    def read(self, offset: int, length: int) -> bytes:
        """These bytes; fewer only where the file ends."""
        length = min(length, self._one.size - offset)
        try:
            data = os.pread(self._fd, length, offset)
            while len(data) < length:
                more = os.pread(self._fd, length - len(data), offset + len(data))
                if not more:
                    raise OSError(0, "a shorter file")
                data += more
        except OSError as problem:
            raise ReadError(
                f"{self._one.path}: expected {length} bytes at {offset}, got {problem.strerror}. Check the disk.",
                path=self._one.path,
                offset=offset,
                errno=problem.errno,
            ) from problem
        return data
