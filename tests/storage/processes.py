"""Runs a piece of Python in a fresh process, where memory can be measured and a signal kills nobody else."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import lowtide

PRELUDE = """
import gc, json, mmap, os, signal, sys, time
import numpy as np
import lowtide
from lowtide.machine import drop_page_cache, page_cache
from lowtide.memory import process_memory

MIB = 1 << 20

def mapped_memory():
    \"\"\"Mapped file pages; those of a file on tmpfs are counted as shared memory.\"\"\"
    now = process_memory()
    return now.mapped + now.shmem

class Growth:
    \"\"\"The most anon + mapped bytes seen above the beginning, and page tables.\"\"\"
    def __init__(self):
        gc.collect()
        self.first, self.first_mapped = process_memory(), mapped_memory()
        self.peak = self.anon = self.mapped = self.tables = 0
    def look(self):
        now = process_memory()
        self.anon = max(self.anon, now.anon - self.first.anon)
        mapped = now.mapped + now.shmem - self.first_mapped
        self.mapped = max(self.mapped, mapped)
        self.tables = max(self.tables, now.tables - self.first.tables)
        self.peak = max(self.peak, now.anon - self.first.anon + mapped)
"""


def run_python(
    script: str, *arguments: object, timeout: float = 500, first: str = ""
) -> subprocess.CompletedProcess[str]:
    """``script`` behind the prelude, with ``arguments`` as ``sys.argv[1:]``; warnings are errors there too.

    ``first`` runs before anything is imported.
    """
    source = str(Path(lowtide.__file__).parent.parent)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([source, os.environ.get("PYTHONPATH", "")])}
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", first + PRELUDE + textwrap.dedent(script), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=timeout,
        env=environment,
        check=False,
    )


def answer_of(script: str, *arguments: object, timeout: float = 500, first: str = "") -> str:
    """What the process printed; fails with what it said on stderr unless it ended well."""
    done = run_python(script, *arguments, timeout=timeout, first=first)
    assert done.returncode == 0, f"exit {done.returncode}:\n{done.stderr[-3000:]}"
    return done.stdout.strip()
