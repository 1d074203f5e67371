"""Files of other kinds that people hand in, and what to do with each.

"This is gzip: run gzip -dk" helps more than "state a dtype", and stating a dtype does not turn another format's bytes
into tokens. Four bytes or more of magic are enough; shorter ones occur in real ids (a uint16 file whose first id is 640
starts like a pickle) and count only together with the suffix. A line of code in a way out can be pasted as it is. Looks
at 512 bytes, and at the schema of files with columns; reads none of these formats.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from lowtide.errors import FormatError
from lowtide.formats.columns.kinds import column_advice
from lowtide.formats.header import HeaderFile

_LOOK = 512  # a tar archive says what it is at byte 257
_FIRST_LINES = 16_384
_COLUMNS = "columns"  # the way out depends on the columns in the file


@dataclass(frozen=True)
class Foreign:
    """One kind of file; in its ways out ``{file}`` becomes the file's name and ``{stem}`` the name without suffix."""

    name: str
    way_out: str
    start: bytes = b""
    suffixes: tuple[str, ...] = ()
    at: int = 0
    tokens: str = ""  # the way out for a run of tokens, if it differs

    def looks_like(self, path: str, head: bytes) -> bool:
        """Whether its bytes are there, and prove it."""
        if not head.startswith(self.start, self.at):
            return False
        return self.certain or path.lower().endswith(self.suffixes)

    @property
    def certain(self) -> bool:
        return len(self.start) >= 4 and self.start != b"\xff\xff\xff\xff"  # -1 is a number like any other

    def refusal(self, path: str, *, tokens: bool) -> FormatError:
        """The error that names it and says what to do, with one line of code."""
        way_out = (self.tokens if tokens else "") or self.way_out
        way_out = way_out.replace("{file}", as_typed(path)).replace("{stem}", stem_of(path))
        return FormatError(f"{path}: expected {'token ids' if tokens else 'an array'}, got {self.name}. {way_out}")


_PICKLE = "If you trust it, load it and save the array: np.save('{stem}.npy', pickle.load(open('{file}', 'rb')))."
_LOAD_TORCH = "Save the tensor as an array: np.save('{stem}.npy', torch.load('{file}', weights_only=True).numpy())."
TORCH_ZIP = Foreign("what torch.save wrote", _LOAD_TORCH)
ZIP = Foreign("a zip archive without arrays in it", "Unpack it: unzip '{file}'.", b"PK\x03\x04")

_FILES = (
    ZIP,
    Foreign("an empty zip archive", "Write it again with np.savez('{stem}.npz', name=array).", b"PK\x05\x06"),
    Foreign("gzip-compressed data", "Unpack it: gzip -dk '{file}'.", b"\x1f\x8b", (".gz", ".tgz")),
    Foreign("zstd-compressed data", "Unpack it: zstd -d '{file}'.", b"\x28\xb5\x2f\xfd"),
    Foreign("bzip2-compressed data", "Unpack it: bzip2 -dk '{file}'.", b"BZh", (".bz2",)),
    Foreign("xz-compressed data", "Unpack it: xz -dk '{file}'.", b"\xfd7zXZ\x00"),
    Foreign("lz4-compressed data", "Unpack it: lz4 -dm '{file}'.", b"\x04\x22\x4d\x18"),
    Foreign("a tar archive", "Unpack it: tar -xf '{file}'.", b"ustar", at=257),
    Foreign("an HDF5 file", "Leave dtype= out: it says its own.", b"\x89HDF\r\n\x1a\n"),
    Foreign("a Parquet file", _COLUMNS, b"PAR1"),
    Foreign("an Arrow file (Feather is one)", _COLUMNS, b"ARROW1\x00\x00"),
    Foreign("an Arrow stream, as Hugging Face datasets keeps it", _COLUMNS, b"\xff\xff\xff\xff", (".arrow", ".arrows")),
    Foreign(
        "a Feather file of the first version",
        "Save it again: pyarrow.feather.write_feather(pyarrow.feather.read_table('{file}'), '{stem}.feather').",
        b"FEA1",
    ),
    Foreign("an old fairseq index", "Open it with fairseq and save its ids with ndarray.tofile.", b"TNTIDX\x00\x00"),
    Foreign(
        "a GGUF model", "Save one tensor: np.save('{stem}.npy', gguf.GGUFReader('{file}').tensors[0].data).", b"GGUF"
    ),
    *(
        Foreign("a pickle, which Lowtide never loads", _PICKLE, start, (".pkl", ".pickle", ".pt", ".pth"))
        for start in (b"\x80\x02", b"\x80\x03", b"\x80\x04\x95", b"\x80\x05\x95")
    ),
)

_TOKENISE = "Turn the text into ids: lowtide prepare '{file}' -o corpus/."
_NO_NUMBERS = "Name the files that hold the numbers."
# Text has no magic, only a name. It can be read as bytes (dtype='uint8').
_TEXT = {
    ".csv": Foreign("a CSV table", _TABLE := "Save the numbers as an array: np.save('{stem}.npy', {load})."),
    ".tsv": Foreign("a table of tab-separated text", _TABLE),
    ".txt": Foreign("text", _TABLE, tokens=_TOKENISE),
    ".text": Foreign("text", _TOKENISE),
    ".md": Foreign("text", _TOKENISE),
    ".jsonl": Foreign("lines of JSON", _TOKENISE),
    ".json": Foreign("a JSON file", _NO_NUMBERS),
    ".yaml": Foreign("a YAML file", _NO_NUMBERS),
    ".py": Foreign("Python source", _NO_NUMBERS),
}
_MDS = Foreign("a shard of MosaicML's MDS", "Read its samples with streaming itself.")
_SIDECARS = {
    ".ds.index": "datatrove's table of document ends",
    ".ds.metadata": "datatrove's description of a .ds file",
    ".ds.loss": "datatrove's loss mask",
    ".csv.gz": "a compressed table (dolma writes one beside each .npy)",
}


def refuse_foreign(file: HeaderFile, stated: np.dtype[Any] | None, *, tokens: bool) -> None:
    """FormatError if the file is of another kind, whatever dtype was stated; single bytes are always allowed."""
    head = file.read(0, _LOOK)
    as_bytes = stated is not None and stated.itemsize == 1
    if as_bytes and not tokens:
        return
    path = file.path.lower()
    for ending, name in _SIDECARS.items():
        if tokens and path.endswith(ending):
            data = file.path[: -len(ending)] + (".ds" if ending.startswith(".ds") else ".npy")
            raise Foreign(name, f"Name the file of ids: lowtide.open_tokens({data!r}).").refusal(file.path, tokens=True)
    for kind in _FILES:
        if kind.looks_like(file.path, head):
            if kind.way_out == _COLUMNS:
                kind = replace(kind, way_out=column_advice(file, as_typed(file.path), tokens=tokens))
            raise kind.refusal(file.path, tokens=tokens)
    if _framed_pickle(head, file.size):
        raise _FILES[-1].refusal(file.path, tokens=tokens)
    if path.endswith(".mds"):
        raise _MDS.refusal(file.path, tokens=tokens)
    text = _TEXT.get(Path(path).suffix)
    if text is not None and not as_bytes:
        raise _with_numbers(text, file).refusal(file.path, tokens=tokens)


def may_be(head: bytes) -> str | None:
    """What a file that starts like this may be, if its first bytes alone prove nothing."""
    short = (kind for kind in _FILES if kind.start and not kind.certain)
    return next((kind.name for kind in short if head.startswith(kind.start)), None)


def as_typed(path: str) -> str:
    """A path as one would type it here: relative if it is below the current directory. An address as it is."""
    if "://" in path:
        return path
    short = os.path.relpath(path)
    return path if short.startswith(os.pardir) else short


def stem_of(path: str) -> str:
    name = Path(path).name
    return name.partition(".")[0] or name


def _with_numbers(text: Foreign, file: HeaderFile) -> Foreign:
    """The call that loads a table, judged by its first lines; for prose, `prepare`."""
    lines = file.read(0, _FIRST_LINES).decode("utf-8", "replace").splitlines()[:3]
    delimiter = {".csv": ",", ".tsv": "\t"}.get(Path(file.path.lower()).suffix)
    plain = [_numbers(line, delimiter) for line in lines if line.strip()]
    if not any(plain):
        return replace(text, way_out=_TOKENISE if delimiter is None else _NO_NUMBERS)
    words = [repr(as_typed(file.path)), *([f"delimiter={delimiter!r}"] if delimiter else [])]
    words += [] if plain[0] else ["skiprows=1"]  # names of columns
    return replace(text, way_out=text.way_out.replace("{load}", f"np.loadtxt({', '.join(words)})"))


def _numbers(line: str, delimiter: str | None) -> bool:
    try:
        return all(np.isfinite(float(word)) for word in line.split(delimiter))
    except ValueError:
        return False


def _framed_pickle(head: bytes, size: int) -> bool:
    """Protocol 4 or 5 with the length of its first frame, which must fit in the file: eleven bytes of evidence."""
    framed = head[:1] == b"\x80" and head[1:3] in (b"\x04\x95", b"\x05\x95") and len(head) >= 11
    return framed and 0 < int.from_bytes(head[3:11], "little") <= size - 11
