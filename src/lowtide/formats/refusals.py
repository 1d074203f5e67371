"""Files and directories of other kinds that people hand in, and what to do with each.

"This is gzip: run gzip -dk" helps more than "state a dtype", and a dtype that was stated does not turn another format's
bytes into tokens. Four bytes or more of magic are believed alone; shorter ones occur in real ids (a uint16 file whose
first id is 640 starts like a pickle) and count only with their suffix. Looks at 512 bytes; reads none of these formats.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lowtide.errors import FormatError
from lowtide.formats.header import HeaderFile, is_file

_LOOK = 512  # a tar archive says what it is at byte 257


@dataclass(frozen=True)
class Foreign:
    """One kind of file; ``{file}`` and ``{stem}`` in its ways out become the file's name, whole and without suffix."""

    name: str
    way_out: str
    start: bytes = b""
    suffixes: tuple[str, ...] = ()
    at: int = 0
    tokens: str = ""  # the way out for a run of tokens, where it is another one

    def looks_like(self, path: str, head: bytes) -> bool:
        """Whether its bytes are there, and are enough."""
        if not head.startswith(self.start, self.at):
            return False
        return self.certain or path.lower().endswith(self.suffixes)

    @property
    def certain(self) -> bool:
        return len(self.start) >= 4 and self.start != b"\xff\xff\xff\xff"  # -1 is a number like any other

    def refusal(self, path: str, *, tokens: bool) -> FormatError:
        """The error that names it and says what to do, with one line of code."""
        name = Path(path).name
        way_out = (self.tokens if tokens else "") or self.way_out
        way_out = way_out.format(file=name, stem=name.partition(".")[0] or name)
        return FormatError(f"{path}: expected {'token ids' if tokens else 'an array'}, got {self.name}. {way_out}")


_COLUMN = "Open its column of ids: lowtide.open_tokens('{file}', column='input_ids')."
_PICKLE = "Where you trust it, load it and save the array: np.save('{stem}.npy', pickle.load(open('{file}', 'rb')))."
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
    Foreign("lz4-compressed data", "Unpack it: lz4 -d '{file}'.", b"\x04\x22\x4d\x18"),
    Foreign("a tar archive", "Unpack it: tar -xf '{file}'.", b"ustar", at=257),
    Foreign("an HDF5 file", "Name one dataset: lowtide.open('{file}', tensor='/X').", b"\x89HDF\r\n\x1a\n"),
    Foreign(
        "a Parquet file",
        "Save one column: np.save('{stem}.npy', pyarrow.parquet.read_table('{file}')['COLUMN'].to_numpy()).",
        b"PAR1",
        tokens=_COLUMN,
    ),
    Foreign(
        "a Feather file of the first version",
        "Save one column: np.save('{stem}.npy', pyarrow.feather.read_table('{file}')['COLUMN'].to_numpy()).",
        b"FEA1",
    ),
    Foreign(
        "an Arrow file (Feather is one)",
        "Save one column: np.save('{stem}.npy', pyarrow.feather.read_table('{file}')['COLUMN'].to_numpy()).",
        b"ARROW1\x00\x00",
        tokens=_COLUMN,
    ),
    Foreign(
        "an Arrow stream, as Hugging Face datasets keeps it",
        "Save one column: np.save('{stem}.npy', pyarrow.ipc.open_stream('{file}').read_all()['COLUMN'].to_numpy()).",
        b"\xff\xff\xff\xff",
        (".arrow", ".arrows"),
        tokens=_COLUMN,
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

_TABLE = "Save the numbers as an array: np.save('{stem}.npy', np.loadtxt('{file}', delimiter='%s'))."
_TOKENISE = "Turn the text into ids first: lowtide prepare '{file}'."
# Text has no magic: its name is all there is. Read as bytes (dtype='uint8') it is what it says.
_TEXT = {
    ".csv": Foreign("a CSV table", _TABLE % ","),
    ".tsv": Foreign("a table of tab-separated text", _TABLE % "\\t"),
    ".jsonl": Foreign("lines of JSON", "Load it and save its numbers with np.save.", tokens=_TOKENISE),
    ".json": Foreign("a JSON file", "Name the files that hold the numbers."),
    ".txt": Foreign("text", "Save its numbers: np.save('{stem}.npy', np.loadtxt('{file}')).", tokens=_TOKENISE),
    ".md": Foreign("text", "Name the files that hold the numbers."),
    ".yaml": Foreign("a YAML file", "Name the files that hold the numbers."),
    ".py": Foreign("Python source", "Name the files that hold the numbers.", tokens=_TOKENISE),
}
_SIDECARS = {
    ".ds.index": "datatrove's table of document ends",
    ".ds.metadata": "datatrove's description of a .ds file",
    ".ds.loss": "datatrove's loss mask",
    ".csv.gz": "a compressed table (dolma writes one beside each .npy)",
}
_SAVE_MDS = (
    "Save its ids: np.concatenate([s['tokens'] for s in streaming.StreamingDataset(local='DIRECTORY')])"
    ".astype('uint16').tofile('train.bin')."
)
_MDS = Foreign("a shard of MosaicML's MDS", _SAVE_MDS)

_MOST_INDEX = 16 * 1024 * 1024
# What an index.json lists, by the key it lists them under. A litData chunk: u32 items n, u32[n + 1] offsets, then the
# ids of every item one after the other.
_LOADERS = {
    b'"chunks"': Foreign(
        "what litData writes (index.json lists its chunks)",
        "Its ids follow a table of offsets. Save those of each chunk, with the dtype that index.json names: "
        "np.fromfile(chunk, 'int32', offset=4 * (2 + int(np.fromfile(chunk, '<u4', 1)[0]))).tofile('ids.bin').",
    ),
    b'"shards"': Foreign("what MosaicML's streaming writes (index.json lists its shards)", _SAVE_MDS),
}


@dataclass(frozen=True)
class LoaderIndex:
    """The ``index.json`` that another loader keeps beside its files, as it is, and which loader's it is."""

    kind: Foreign
    text: bytes


def read_loader_index(directory: Path) -> LoaderIndex | None:
    """Another loader's index of this directory; ``None`` where there is none. Reads at most 16 MiB."""
    path = str(directory / "index.json")
    if not is_file(path):
        return None
    with HeaderFile(path) as file:
        text = file.read(0, min(file.size, _MOST_INDEX))
    return next((LoaderIndex(kind, text) for key, kind in _LOADERS.items() if key in text), None)


def refuse_foreign(file: HeaderFile, stated: np.dtype[Any] | None, *, tokens: bool) -> None:
    """FormatError where the file is of another kind, whatever dtype was stated; single bytes are always bytes."""
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
            raise kind.refusal(file.path, tokens=tokens)
    if _framed_pickle(head, file.size):
        raise _FILES[-1].refusal(file.path, tokens=tokens)
    if path.endswith(".mds"):
        raise _MDS.refusal(file.path, tokens=tokens)
    text = _TEXT.get(Path(path).suffix)
    if text is not None and not as_bytes:
        raise text.refusal(file.path, tokens=tokens)


def may_be(head: bytes) -> str | None:
    """What a file that starts so may be, where its first bytes alone prove nothing."""
    short = (kind for kind in _FILES if kind.start and not kind.certain)
    return next((kind.name for kind in short if head.startswith(kind.start)), None)


def refuse_foreign_directory(path: str, names: Collection[str], *, tokens: bool) -> None:
    """FormatError where a directory is another format's whole; ``names`` are its entries."""
    found = _directory_kind(names)
    if found is not None:
        raise found.refusal(path, tokens=tokens)


def _directory_kind(names: Collection[str]) -> Foreign | None:
    if {"zarr.json", ".zarray", ".zgroup"} & set(names):
        save = (
            "np.save('{stem}.npy', zarr.open('{file}')[:])"
            if ".zgroup" not in names
            else "np.save('{stem}.npy', zarr.open('{file}')['ARRAY'][:])"
        )
        return Foreign("a Zarr store", f"Save one array: {save}.")
    if "data.ninja" in names:
        return Foreign(
            "an mmap_ninja directory",
            "Open its data with the dtype and shape that dtype.ninja and shape.ninja beside it state: "
            "lowtide.open('{file}/data.ninja', dtype=..., shape=...).",
        )
    for ending, name in ((".arrow", "Arrow files"), (".parquet", "Parquet files"), (".feather", "Feather files")):
        if any(entry.endswith(ending) for entry in names):
            column = f"Open their column of ids: lowtide.open_tokens('{{file}}/*{ending}', column='input_ids')."
            load = f"pyarrow.dataset.dataset('{{file}}', format='{ending[1:]}').to_table()['COLUMN'].to_numpy()"
            return Foreign(
                f"a directory of {name}", f"Save one column: np.save('{{stem}}.npy', {load}).", tokens=column
            )
    return None


def _framed_pickle(head: bytes, size: int) -> bool:
    """Protocol 4 or 5 with the length of its first frame, which must fit in the file: eleven bytes of evidence."""
    framed = head[:1] == b"\x80" and head[1:3] in (b"\x04\x95", b"\x05\x95") and len(head) >= 11
    return framed and 0 < int.from_bytes(head[3:11], "little") <= size - 11
