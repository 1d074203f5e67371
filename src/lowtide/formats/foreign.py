"""Files of other kinds that people hand in by mistake, by their first bytes.

One idea: "this is a zip archive" helps more than "state a dtype". Looks at 16 bytes; reads none of these.
"""

from __future__ import annotations

_STARTS = {
    b"PK\x03\x04": "a zip archive (.npz, or torch.save's file)",
    b"PK\x05\x06": "an empty zip archive",
    b"\x1f\x8b": "gzip-compressed data",
    b"\x28\xb5\x2f\xfd": "zstd-compressed data",
    b"BZh": "bzip2-compressed data",
    b"\xfd7zXZ\x00": "xz-compressed data",
    b"\x04\x22\x4d\x18": "lz4-compressed data",
    b"\x89HDF\r\n\x1a\n": "an HDF5 file",
    b"PAR1": "a Parquet file",
    b"ARROW1\x00\x00": "an Arrow file",
    b"\xff\xff\xff\xff": "what may be an Arrow stream",
    b"TNTIDX\x00\x00": "an old fairseq index",
    b"GGUF": "a GGUF model",
    b"\x80\x02": "a pickle, which Lowtide never loads",
    b"\x80\x03": "a pickle, which Lowtide never loads",
    b"\x80\x04\x95": "a pickle, which Lowtide never loads",
    b"\x80\x05\x95": "a pickle, which Lowtide never loads",
}


def foreign_name(head: bytes) -> str | None:
    """What a file that starts so is, in words; ``None`` for anything not in the table."""
    return next((name for start, name in _STARTS.items() if head.startswith(start)), None)
