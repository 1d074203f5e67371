"""What a test file leaves behind: processes, threads and files, each of which slows or spoils the tests after it.

A run has a mark in its environment (from conftest), so that whatever was started from it, children of
children and orphans too, is found by one look through ``/proc``. A look takes some ten milliseconds and is made twice
for each file of tests. It does not see native threads, nor forked processes whose parent has died; without ``/proc`` it
sees no processes at all.
"""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

MARK = f"LOWTIDE_TEST_RUN={os.getpid()}-{uuid.uuid4().hex}"
PATIENCE = 20.0  # seconds for what is on its way out; nobody waits when nothing is left
BIG = 1024**2  # bytes in temporary files that nobody removed

# multiprocessing starts these once for a process and ends them with it; so does the one Ray cluster of a run its own.
_STAYING = (b"multiprocessing.resource_tracker", b"multiprocessing.forkserver", b"ray::", b"/ray/")


def processes() -> dict[int, str]:
    """Running processes that came from this one: pid and command."""
    found = {}
    for entry in Path("/proc").iterdir() if Path("/proc/self").exists() else ():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with suppress(OSError):  # it ended meanwhile, or is somebody else's
            state, parent = (entry / "stat").read_bytes().rpartition(b")")[2].split()[:2]
            if state == b"Z" or (int(parent) != os.getpid() and MARK.encode() not in (entry / "environ").read_bytes()):
                continue
            command = (entry / "cmdline").read_bytes()
            if not any(name in command for name in _STAYING):
                found[int(entry.name)] = command.replace(b"\0", b" ").decode(errors="replace")[:200]
    return found


# Ray Data names its threads so; ours have no Python thread. A "Dummy" is a thread of a foreign library, such as Ray's
# core, that once called into Python.
OTHERS = ("Dask-Offload", "Prefetcher", "Dummy-")


def threads() -> dict[int, str]:
    """Python's own, but for those that distributed and Ray Data end in their own time, or with the process."""
    everyone = threading.enumerate()
    return {thread.ident or 0: thread.name for thread in everyone if not thread.name.startswith(OTHERS)}


def big_files(directory: Path) -> dict[Path, int]:
    """What lies directly under ``directory`` and takes more than a little room, with the bytes it takes."""
    sizes = {entry: sum(_room(file) for file in (entry, *entry.rglob("*"))) for entry in directory.iterdir()}
    return {entry: size for entry, size in sizes.items() if size > BIG}


def _room(path: Path) -> int:
    with suppress(OSError):
        return path.lstat().st_blocks * 512
    return 0


class Before:
    """What there was when a file of tests began."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self._processes = set(processes())
        self._threads = set(threads())
        self._files = set(big_files(scratch))

    def left_since(self) -> list[str]:
        """A sentence for everything that is still there now and was not then. Processes among it are ended."""
        gc.collect()
        new_threads = _that_stay(lambda: {n: name for n, name in threads().items() if n not in self._threads})
        new_processes = _that_stay(
            lambda: {pid: name for pid, name in processes().items() if pid not in self._processes}
        )
        for pid in new_processes:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        files = {path: size for path, size in big_files(self._scratch).items() if path not in self._files}
        return [
            *(f"process {pid}: {command}" for pid, command in new_processes.items()),
            *(f"thread {name!r}" for name in new_threads.values()),
            *(f"{size:,} bytes in {path}" for path, size in files.items()),
        ]


def _that_stay(look: Callable[[], dict[int, str]]) -> dict[int, str]:
    """What a look still shows after patience; returns as soon as it shows nothing."""
    ends = time.monotonic() + PATIENCE
    while (found := look()) and time.monotonic() < ends:
        time.sleep(0.02)
    return found
