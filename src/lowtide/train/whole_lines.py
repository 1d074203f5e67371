"""A file that grows by whole lines, whatever happens in between.

One idea: we know where the last whole line ends. A line that could not be written to its end (a full disk, a kill, a
power failure) is cut off again, at once where that is possible and else when the file is opened next. One writer only;
costs one system call per line.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


class WholeLines:
    """Appends lines; an OSError leaves the file as it was before."""

    def __init__(self, path: str | Path) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        size = end = os.fstat(self._descriptor).st_size
        while end and os.pread(self._descriptor, 1, end - 1) != b"\n":
            end -= 1
        if end < size:
            os.ftruncate(self._descriptor, end)
        self._end = end

    def append(self, line: bytes) -> None:
        try:
            done = 0
            while done < len(line):  # a write may take only part of it
                done += os.pwrite(self._descriptor, line[done:], self._end + done)
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, self._end)
            raise
        self._end += len(line)

    def close(self) -> None:
        os.close(self._descriptor)
