"""What lies beside token files: a manifest, or another loader's index.

One idea: a glob of a thousand shards has one directory, so what lies in it is read once for one opening, not once per
shard. Costs one stat per directory, and one read of at most 16 MiB where an index.json is there.
"""

from __future__ import annotations

from pathlib import Path

from lowtide.formats.foreign import Foreign
from lowtide.formats.header import HeaderFile, is_file
from lowtide.formats.manifest import Manifest, read_manifest

_INDEX = "index.json"
_MOST_INDEX = 16 * 1024 * 1024

# A litData chunk: u32 items n, u32[n + 1] offsets, then the ids of every item one after the other.
LITDATA = Foreign(
    "what litData writes (index.json lists its chunks)",
    "Its ids follow a table of offsets. Save those of each chunk, with the dtype that index.json names: "
    "np.fromfile(chunk, 'int32', offset=4 * (2 + int(np.fromfile(chunk, '<u4', 1)[0]))).tofile('ids.bin').",
)
MDS = Foreign(
    "what MosaicML's streaming writes (index.json lists its shards)",
    "Save its ids: np.concatenate([sample['tokens'] for sample in streaming.StreamingDataset(local='DIRECTORY')])"
    ".astype('uint16').tofile('train.bin').",
)


class Neighbours:
    """Answers about directories, remembered for the length of one opening."""

    def __init__(self) -> None:
        self._manifests: dict[Path, tuple[Manifest | None, dict[str, int]]] = {}
        self._indexes: dict[Path, tuple[Foreign, bytes] | None] = {}

    def manifest(self, directory: Path) -> Manifest | None:
        return self._remembered(directory)[0]

    def listed(self, path: Path) -> tuple[Manifest, int] | None:
        """The manifest that lists this file, and how many tokens it says the file has."""
        manifest, shards = self._remembered(path.parent)
        return (manifest, shards[path.name]) if manifest is not None and path.name in shards else None

    def refuse_chunk(self, path: Path) -> None:
        """FormatError for a file that another loader's index.json names: its first bytes are offsets, not ids."""
        index = self._index(path.parent)
        if index is not None and f'"{path.name}"'.encode() in index[1]:
            raise index[0].refusal(str(path), tokens=True)

    def refuse_loader(self, directory: Path) -> None:
        """FormatError for a directory that is another loader's whole."""
        index = self._index(directory)
        if index is not None:
            raise index[0].refusal(str(directory), tokens=True)

    def _remembered(self, directory: Path) -> tuple[Manifest | None, dict[str, int]]:
        if directory not in self._manifests:
            manifest = read_manifest(directory)
            self._manifests[directory] = manifest, dict(manifest.shards) if manifest else {}
        return self._manifests[directory]

    def _index(self, directory: Path) -> tuple[Foreign, bytes] | None:
        if directory not in self._indexes:
            self._indexes[directory] = _read_index(str(directory / _INDEX))
        return self._indexes[directory]


def _read_index(path: str) -> tuple[Foreign, bytes] | None:
    if not is_file(path):
        return None
    with HeaderFile(path) as file:
        text = file.read(0, min(file.size, _MOST_INDEX))
    if b'"chunks"' in text:
        return LITDATA, text
    return (MDS, text) if b'"shards"' in text else None
