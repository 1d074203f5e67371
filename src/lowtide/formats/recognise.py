"""Which format a file is in, by its bytes and by what lies beside it.

One idea: the order is fixed and goes from the strongest evidence to the weakest - long magics first, then llm.c's
header, then safetensors' JSON, then files beside it - and a file that matches nothing has no header. Costs one
read of 1 KiB.
"""

from __future__ import annotations

from lowtide.errors import FormatError
from lowtide.formats import datatrove, litgpt, llmc, megatron, npy, safetensors
from lowtide.formats.header import HeaderFile, is_file
from lowtide.formats.layout import Layout


def by_header(file: HeaderFile, *, beside: bool) -> Layout | None:
    """The layout a file's own header gives, or - if ``beside`` - an index next to it; ``None`` where there is none."""
    head = file.read(0, llmc.HEADER)
    if head.startswith(npy.MAGIC):
        return npy.read(file)
    if head.startswith(megatron.MAGIC):
        return _megatron_by_index(file)
    if beside and _has_megatron_index(file.path):
        with HeaderFile(_other(file.path, ".idx")) as index:
            return megatron.read(index, file)
    if head.startswith(litgpt.MAGIC):
        return litgpt.read(file)
    if llmc.looks_like(head):
        return llmc.read(file)
    if beside and datatrove.has_sidecars(file.path):
        return datatrove.read(file)
    return None


def is_safetensors(file: HeaderFile, *, stated: bool) -> bool:
    """Whether to read it so: by its name, or by its first bytes unless a dtype was stated."""
    # Ten bytes are weak evidence: 64-bit integers 5, 123, ... start the same way. A stated dtype settles it.
    if file.path.endswith(".safetensors"):
        return True
    return not stated and safetensors.looks_like(file.read(0, 10), file.size)


def _has_megatron_index(path: str) -> bool:
    index = _other(path, ".idx")
    if not path.endswith(".bin") or not is_file(index):
        return False
    with HeaderFile(index) as file:
        return file.read(0, len(megatron.MAGIC)) == megatron.MAGIC


def _megatron_by_index(index: HeaderFile) -> Layout:
    data = _other(index.path, ".bin")
    if data == index.path or not is_file(data):
        raise FormatError(
            f"{index.path}: expected the tokens of this Megatron index in {data}, got no such file. "
            "Put the .bin and the .idx side by side."
        )
    with HeaderFile(data) as file:
        return megatron.read(index, file)


def _other(path: str, suffix: str) -> str:
    return (path[:-4] if path.endswith((".bin", ".idx")) else path) + suffix
