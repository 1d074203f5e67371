"""TreeCounters for systems without /proc (macOS): what psutil can tell, and the names of what it cannot.

One idea: one honest number instead of six guessed ones. ``anon`` is what belongs to the process alone where
the system says so (USS), else RSS; every other kind is 0 and named in ``missing``. Not run on macOS by its
authors; its reading of psutil is tested on Linux.
"""

from __future__ import annotations

import time
from typing import Any

from lowtide.memory.samples import ProcessSample, Sample

_MISSING = {
    "mapped": "this system does not tell mapped file pages apart",
    "cache": "this system does not say which pages of a file are cached",
    "dirty": "this system does not count a file's dirty pages",
    "tables": "this system does not count page tables",
    "shmem": "this system does not count shared memory apart",
    "cgroup": "this system has no cgroups",
}


class PlainCounters:
    """The same face as ``TreeCounters``."""

    def __init__(self, pid: int, *, children: bool = True) -> None:
        import psutil  # a dependency of the command line; the library's own import must not pay for it

        self.missing = dict(_MISSING)
        self.paced = 0.0
        self._psutil = psutil
        self._children = children
        self._begin = time.monotonic()
        try:
            self._root = psutil.Process(pid)
        except psutil.NoSuchProcess:
            raise ProcessLookupError(f"pid {pid}: expected a running process, got none. Check the number.") from None

    def sample(self, *, last: bool = False) -> Sample | None:  # noqa: ARG002 - nothing here is ever skipped
        found = []
        try:
            members = [self._root, *(self._root.children(recursive=True) if self._children else [])]
        except self._psutil.Error:
            return None
        for process in members:
            try:
                if process.status() != self._psutil.STATUS_ZOMBIE:
                    found.append(self._process(process))
            except self._psutil.Error:
                continue
        if not found:
            return None
        anon = sum(each.anon for each in found)
        return Sample(time.monotonic() - self._begin, anon, 0, 0, 0, 0, 0, processes=tuple(found))

    def finish(self) -> Sample | None:
        """Nothing is known here of files that outlive their process."""
        return None

    def _process(self, process: Any) -> ProcessSample:
        rss = int(process.memory_info().rss)
        try:
            own = int(process.memory_full_info().uss)
        except (AttributeError, self._psutil.Error):
            own = rss
            self.missing["anon"] = "only RSS could be read: file pages are in it"
        return ProcessSample(
            pid=process.pid,
            parent=process.ppid(),
            name=process.name(),
            anon=own,
            mapped=0,
            shmem=0,
            tables=0,
            swap=0,
            rss_anon=rss,
            rss_file=0,
            rss_shmem=0,
            forked=False,
        )
