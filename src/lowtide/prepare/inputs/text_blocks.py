"""From a section to blocks of text: whole documents, or pieces of documents that are too long for one block.

Reading and encoding are two steps with plain bytes between them, so that a block can be read where the file is and
encoded somewhere else. A section of a plain file holds the documents that *begin* in it: its reader looks for the first
separator and reads on past the end to finish the last document. Costs a few blocks of `TEXT_BLOCK` bytes, however long
a document is. Nothing but very long lines of JSON is decoded or parsed here.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace

from lowtide.corpus.request import Request
from lowtide.errors import FormatError, ReadError
from lowtide.prepare.inputs.cuts import NOWHERE, cut_after
from lowtide.prepare.inputs.decompress import decompressed
from lowtide.prepare.inputs.json_lines import LongLine, bad_line
from lowtide.prepare.inputs.listing import Input
from lowtide.prepare.inputs.parquet_text import column_texts
from lowtide.prepare.inputs.sections import LARGE_DOCUMENT, TEXT_BLOCK, InputSection, overlaps_itself, separator_of
from lowtide.units import format_size

LONGEST_PIECE = 4 * 1024 * 1024  # bytes, if there is no place to cut
_MORE = 256 * 1024  # read at a time
_FEW = 8 * 1024  # the first read in search of a separator or a place to cut, which is mostly near


@dataclass(frozen=True)
class TextBlock:
    """Whole documents as they are in the input, or a piece of one, and where they came from."""

    section: int
    kind: str  # "documents", "rows": payload is a list; "lines", "separator", "jsonl": bytes to be taken apart
    payload: bytes | list[bytes]
    paths: tuple[str, ...]  # one per document if each is a file, else one for all
    first: int = 0  # where the payload begins in its file (unpacked, if compressed), or its first row
    line: int = 0  # number of its first line; 0: unknown
    weight: int = 0  # bytes of input this stands for, for progress
    continues: bool = False  # the first document began in the block before
    opens: bool = False  # the last document continues in the next block
    met: str = ""  # what happened while a long line was taken apart: "bad" or "replaced", as in Tally
    number: int = 0  # of this block in its section


def text_blocks(section: InputSection, request: Request, skip: int = 0) -> Iterator[TextBlock]:
    """The blocks of a section in order, without the first ``skip``."""
    one = section.source
    separator = separator_of(one, request)
    if one.kind == "parquet":
        blocks = _parquet(section, request)
    elif section.end == 0:
        blocks = _small_files(section)
    elif section.streamed and separator:
        blocks = _Separated(section, request, separator, _text_of(one)).blocks()
    elif section.streamed:
        blocks = _streamed_document(section)
    elif separator:
        blocks = _range(section, request, separator)
    else:
        blocks = _piece(section)
    # Most sections are one block, which has its number already.
    return (replace(block, number=number) if number else block for number, block in enumerate(blocks) if number >= skip)


def pieces(chunks: Iterator[bytes], cut: str, where: str) -> Iterator[tuple[bytes, bool]]:
    """Pieces of about `TEXT_BLOCK` bytes from a document that comes in chunks, each with whether it is the last."""
    kept = bytearray()
    for chunk in chunks:
        kept += chunk
        while len(kept) > 2 * TEXT_BLOCK:
            end = cut_after(kept, TEXT_BLOCK, cut)
            if end is None:
                if len(kept) > TEXT_BLOCK + LONGEST_PIECE:
                    raise FormatError(_too_long(where, cut))
                break
            yield bytes(kept[:end]), False
            del kept[:end]
    yield bytes(kept), True


def _too_long(where: str, cut: str) -> str:
    size = format_size(LONGEST_PIECE)
    if cut == NOWHERE:
        return (
            f"{where}: expected documents of at most {size}, because it is not known where this tokenizer may cut "
            "longer ones, got a longer one. Cut the text into documents with --lines or --separator."
        )
    return f"{where}: expected a blank or a line end in {size} of text, got none. Leave this document out."


def _small_files(section: InputSection) -> Iterator[TextBlock]:
    payload = []
    for one in section.inputs:
        with _Opened(one) as file:
            payload.append(file.read(0, one.size))
    paths = tuple(one.path for one in section.inputs)
    yield TextBlock(section.number, "documents", payload, paths, weight=sum(map(len, payload)))


def _piece(section: InputSection) -> Iterator[TextBlock]:
    """A piece of one document that is too large to encode at once; its neighbours hold the rest."""
    one = section.source
    with _Opened(one) as file:
        begin = file.cut_after(section.begin, section.cut) if section.begin else 0
        end = file.cut_after(section.end, section.cut)
        if end - begin > TEXT_BLOCK + LONGEST_PIECE:
            raise FormatError(_too_long(f"{one.path}, byte {begin}", section.cut))
        text = file.read(begin, end - begin)
    continues, opens = section.begin > 0, section.end < one.size
    yield TextBlock(
        section.number, "documents", [text], (one.path,), begin, 0, section.weight, continues=continues, opens=opens
    )


def _range(section: InputSection, request: Request, separator: bytes) -> Iterator[TextBlock]:
    """The documents that begin in ``[begin, end)``: find both borders first, then read."""
    one, size = section.source, len(separator)
    with _Opened(one) as file:
        begin = 0
        if section.begin:
            # A document begins where a separator ends; a separator that ends at `begin` began `size` bytes before it.
            found = file.find(separator, max(0, section.begin - size), section.end)
            if found is None or found + size >= section.end:
                return  # no document begins here
            begin = found + size
        # The separator that ends at `end` or later closes the last document.
        end = file.find(separator, max(begin, section.end - size), one.size) if section.end < one.size else None
        end = one.size if end is None else end
        if end - begin <= LARGE_DOCUMENT:
            data, line = file.read(begin, end - begin), 1 if begin == 0 else 0
            yield TextBlock(section.number, one.kind, data, (one.path,), begin, line, section.weight)
        else:
            yield from _Separated(section, request, separator, file.chunks(begin, end), begin).blocks()


class _Separated:
    """Documents between separators, read from one stream."""

    def __init__(
        self,
        section: InputSection,
        request: Request,
        separator: bytes,
        chunks: Iterator[tuple[bytes, int]],
        first: int = 0,
    ) -> None:
        self._section, self._request, self._separator, self._chunks = section, request, separator, chunks
        self._at, self._line = first, 1 if first == 0 else 0
        self._kept, self._done, self._told, self._ended = bytearray(), 0, 0, False

    def blocks(self) -> Iterator[TextBlock]:
        while True:
            while len(self._kept) < TEXT_BLOCK and self._more():
                pass
            end = self._last_separator()
            while end < 0 and len(self._kept) <= LARGE_DOCUMENT and self._more():
                end = self._last_separator()
            if end < 0 and len(self._kept) > LARGE_DOCUMENT:
                yield from self._long()
            elif self._ended and (end < 0 or len(self._kept) <= LARGE_DOCUMENT):
                yield self._block(len(self._kept))
                return
            else:
                yield self._block(end)

    def _more(self) -> bool:
        chunk, self._done = next(self._chunks, (b"", self._done))
        self._kept += chunk
        self._ended = not chunk
        return bool(chunk)

    def _last_separator(self) -> int:
        if overlaps_itself(self._separator):  # then occurrences are counted from the left
            return len(self._kept) - len(self._kept.split(self._separator)[-1]) - len(self._separator)
        return self._kept.rfind(self._separator)

    def _block(self, end: int) -> TextBlock:
        """Take what is before ``end`` off the buffer, together with the separator that follows."""
        one, line, first = self._section.source, self._line, self._at
        data = self._take(end)
        self._take(len(self._separator))
        return TextBlock(self._section.number, one.kind, data, (one.path,), first, line, self._weight())

    def _take(self, length: int) -> bytes:
        data = bytes(self._kept[:length])
        del self._kept[:length]
        self._at += len(data)
        self._line += data.count(b"\n") if self._line else 0
        return data

    def _weight(self) -> int:
        """Bytes of input since the last call."""
        before, self._told = self._told, self._done
        return self._done - before

    def _document(self) -> Iterator[bytes]:
        """The document that begins here, some at a time; leaves the stream just after its separator."""
        size = len(self._separator)
        while True:
            end = self._kept.find(self._separator)
            if end >= 0 or self._ended:
                yield self._take(len(self._kept) if end < 0 else end)
                self._take(size)
                return
            yield self._take(max(0, len(self._kept) - size + 1))
            self._more()

    def _long(self) -> Iterator[TextBlock]:
        """The pieces of a document that is too long to hold."""
        one, line, first, continues = self._section.source, self._line, self._at, False
        document, chunks, reader = self._document(), None, None
        if one.kind == "jsonl":
            errors = "replace" if self._request.invalid_utf8 == "replace" else "strict"
            reader = LongLine(document, self._request.field, errors)
            chunks = reader.texts()
        try:
            for text, last in pieces(chunks or document, self._section.cut, f"{one.path}, byte {first}"):
                yield TextBlock(
                    self._section.number,
                    "documents",
                    [text.removesuffix(b"\r") if last and one.kind == "lines" else text],
                    (one.path,),
                    weight=self._weight(),
                    continues=continues,
                    opens=not last,
                    met="replaced" if last and reader and reader.replaced else "",
                )
                continues = True
        except FormatError:
            raise
        except (ValueError, KeyError, TypeError) as problem:
            told = bad_line(one.path, line, first, self._request.field, problem)
            if not self._request.skip_bad:
                raise FormatError(told) from None
            if continues:  # the beginning is written already
                raise FormatError(
                    f"{told.partition('. ')[0]}. Leave this line out: it is too long to look ahead."
                ) from None
            for _ in document:
                pass
            yield TextBlock(self._section.number, "documents", [], (one.path,), weight=self._weight(), met="bad")


def _streamed_document(section: InputSection) -> Iterator[TextBlock]:
    """One document that is read from its beginning: whole, or in pieces if it is large."""
    one, told, done, continues, first = section.source, 0, 0, False, 0

    def chunks() -> Iterator[bytes]:
        nonlocal done
        for chunk, done in _text_of(one):  # noqa: B007 - the last one is the weight
            yield chunk

    for text, last in pieces(chunks(), section.cut, one.path):
        yield TextBlock(
            section.number, "documents", [text], (one.path,), first, 0, done - told, continues=continues, opens=not last
        )
        continues, told, first = True, done, first + len(text)


def _parquet(section: InputSection, request: Request) -> Iterator[TextBlock]:
    one, weight, row = section.source, section.weight, 0
    with _Opened(one):  # checks that it is still the file that was listed
        for texts in column_texts(one.path, request.column, range(section.begin, section.end), TEXT_BLOCK):
            begin = 0
            for place, text in enumerate(texts):
                if len(text) <= LARGE_DOCUMENT:
                    continue
                yield TextBlock(section.number, "rows", texts[begin:place], (one.path,), row + begin, 0, weight)
                continues = False
                for piece, last in pieces(iter([text]), section.cut, f"{one.path}, row {row + place}"):
                    yield TextBlock(
                        section.number, "rows", [piece], (one.path,), row + place, continues=continues, opens=not last
                    )
                    continues = True
                begin, weight = place + 1, 0
            yield TextBlock(section.number, "rows", texts[begin:], (one.path,), row + begin, 0, weight)
            row, weight = row + len(texts), 0


def _text_of(one: Input) -> Iterator[tuple[bytes, int]]:
    with _Opened(one) as file:
        yield from decompressed(one.path, one.compression) if one.compression else file.chunks(0, one.size)


class _Opened:
    """An opened input, checked to be still the file that was listed."""

    def __init__(self, one: Input) -> None:
        self._one = one

    def __enter__(self) -> _Opened:
        self._fd = os.open(self._one.path, os.O_RDONLY | os.O_CLOEXEC)
        status = os.fstat(self._fd)
        if (status.st_size, status.st_mtime_ns) != (self._one.size, self._one.modified):
            os.close(self._fd)
            raise ReadError(
                f"{self._one.path}: expected the {self._one.size} bytes this run was planned with, got a file that "
                "has changed since. Start again in an empty directory.",
                path=self._one.path,
                offset=0,
            )
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    def find(self, separator: bytes, begin: int, end: int) -> int | None:
        """Where the separator first begins in ``[begin, end)``, looking past ``end`` for its own end."""
        reach, step = min(end + len(separator) - 1, self._one.size), 16 * len(separator) + _FEW
        while begin < end:
            found = self.read(begin, min(step, reach - begin)).find(separator)
            if found >= 0:
                return begin + found
            begin += step - len(separator) + 1
            step = max(step, min(2 * step, _MORE))
        return None

    def cut_after(self, mark: int, rule: str) -> int:
        """The first place from ``mark`` on where the file may be cut; its end if there is none."""
        before, step = max(0, mark - 4), _FEW  # the letter before the place
        while before < self._one.size:
            found = cut_after(self.read(before, step), mark - before, rule)
            if found is not None:
                return before + found
            mark = max(mark, min(before + step, self._one.size) - 3)  # the sign after the place may be 3 bytes
            before = mark - 4 if before + step < self._one.size else self._one.size
            step = min(4 * step, _MORE)
        return self._one.size

    def chunks(self, begin: int, end: int) -> Iterator[tuple[bytes, int]]:
        """A range as (bytes, how many so far)."""
        for at in range(begin, end, _MORE):
            data = self.read(at, min(_MORE, end - at))
            yield data, at + len(data) - begin

    def read(self, offset: int, length: int) -> bytes:
        """These bytes; fewer only if the file ends first."""
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
