"""Sizes as people write them, and back.

A size is an int of bytes everywhere inside Lowtide; text exists only at the edges. ``64MiB``, ``64 MiB``,
``1.5GB``, ``512`` and ``4096 B`` are sizes. ``K``, ``M``, ``G``, ``T``, ``P`` alone are binary, as for ``ls -h``.
"""

from __future__ import annotations

import operator
import re
from typing import SupportsIndex

KIB = 1024
MIB = 1024**2
GIB = 1024**3
TIB = 1024**4

_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?|\.[0-9]+)\s*([KMGTP]?)(I?)(B?)\s*", re.IGNORECASE)
_POWER = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5}


def parse_size(size: SupportsIndex | str, *, what: str = "size") -> int:
    """Bytes in ``size``; ValueError with an example if it cannot be understood."""
    if isinstance(size, bool) or not isinstance(size, (SupportsIndex, str)):
        raise TypeError(
            f"{what}: expected an int of bytes or text such as '64MiB', got {type(size).__name__}. Use '64MiB'."
        )
    if not isinstance(size, str):
        whole = operator.index(size)  # an integer of NumPy's too
        if whole < 0:
            raise ValueError(f"{what}: expected 0 bytes or more, got {whole}. Write it as '64MiB'.")
        return whole
    match = _SIZE.fullmatch(size)
    if match is None or (match[3] and not match[2]):
        raise ValueError(f"{what}: expected a size such as '64MiB' or 67108864, got {size!r}. Write it as '64MiB'.")
    number, prefix, binary, byte = match.groups()
    decimal = bool(byte) and not binary
    return int(float(number) * (1000 if decimal else 1024) ** _POWER[prefix.upper()])


def format_size(size: int | float) -> str:
    """Three figures and a binary unit: 1536 -> '1.50 KiB'."""
    value = float(size)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(value) < 1024 or unit == "TiB":
            break
        value /= 1024
    if unit == "B":
        return f"{int(value)} B"
    digits = 2 if abs(value) < 10 else 1 if abs(value) < 100 else 0
    return f"{value:,.{digits}f} {unit}"


def format_duration(seconds: float) -> str:
    """One or two units a person would say: '0.4 s', '12 s', '3 min 20 s', '2 h 5 min', '4 days 3 h'."""
    if seconds < 0.0995:
        return f"{seconds * 1000:.3g} ms"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for size, name, smaller, smaller_name in ((86_400, "days", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            count, rest = divmod(whole, size)
            name = "day" if name == "days" and count == 1 else name
            return f"{count} {name}" + (f" {rest // smaller} {smaller_name}" if rest // smaller else "")
    return f"{whole} s"
