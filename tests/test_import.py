"""What ``import lowtide`` does to a process: which modules it loads, and nothing else.

Its time is a benchmark's business (``python -m benchmarks.arrays``): a slow machine is no defect. A module that nobody
meant to load is one on every machine, and it is named here.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import lowtide

SOURCE = Path(lowtide.__file__).parent

# The modules of ours that opening and reading need. What measures, reports, trains or prints is loaded when it is used.
ROOMS = {
    "lowtide": "arguments array create errors feed together tokens units windows",
    "lowtide.formats": "arrays corpus_parts foreign_directories guess header layout recognise refusals sources",
    "lowtide.formats.columns": "decoded id_columns",
    "lowtide.formats.files": "hdf5 members memmap npy npz raw safetensors",
    "lowtide.formats.tokens": "datatrove ends litgpt llmc manifest megatron token_files",
    "lowtide.engine": "document_planes mapping packed_plans permutation reads runs sinks",
    "lowtide.machine": "cgroups files limits opening pages",
    "lowtide.order": "feistel local mixing orders steps streams words",
    "lowtide.reading": "admission ahead cursor fingerprint html_table places plan state stretches token_range"
    " window_reader",
    "lowtide.reading.documents": "accounts boundaries boundary_index docs document_counts kept_arrays packed"
    " packing stride",
    "lowtide.reading.rows": "column_stats indexing iteration member_rows parts reader resident stratified",
    "lowtide.storage": "budget buffers forks mapped own_files read release spans store watched_files",
    "lowtide.storage.writing": "behind output unfinished",
}
OURS = {*ROOMS, *(f"{room}.{name}" for room, names in ROOMS.items() for name in names.split())}

# The standard library's modules that ours may import when they are imported, with whatever those import in turn.
# Some of them numpy has loaded already; which, changes from one numpy and one Python to the next.
STANDARD = (
    "__future__, array, ast, bisect, collections.abc, contextlib, ctypes, dataclasses, errno, fcntl, functools,"
    " gc, glob, hashlib, itertools, json, math, mmap, operator, os, pathlib, platform, re, resource, stat, struct,"
    " sys, threading, types, typing, weakref"
)


def fresh(script: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(SOURCE.parent)}
    return subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
    ).stdout


def loaded_by(statement: str) -> set[str]:
    """Modules that ``statement`` adds to an interpreter that has numpy and the allowed part of the standard library."""
    script = (
        f"import json, sys, numpy, numpy.typing\nimport {STANDARD}\n"
        f"before = set(sys.modules)\n{statement}\n"
        "print(json.dumps(sorted(set(sys.modules) - before)))"
    )
    return set(json.loads(fresh(script)))


def test_importing_lowtide_loads_these_modules_and_no_others() -> None:
    more = loaded_by("import lowtide") - OURS - {"lowtide.engine._core"}  # where it was built
    assert not more, (
        f"not in the lists of this file: {sorted(more)}. Import them where they are used, or add them here."
    )


def test_a_module_outside_the_lists_would_be_seen() -> None:
    """The negative control: an import that does load more."""
    assert {"lowtide.memory", "urllib.request"} <= loaded_by("import lowtide, urllib.request; lowtide.watch") - OURS


def test_the_list_of_modules_names_only_modules_there_are() -> None:
    files = {module_of(path) for path in SOURCE.rglob("*.py")}
    assert files >= OURS, f"no longer there: {sorted(OURS - files)}. Take them off the list."


def module_of(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def test_importing_lowtide_starts_no_thread_and_opens_no_file() -> None:
    script = (
        "import os, numpy, threading\n"
        "count = lambda what: len(os.listdir(f'/proc/self/{what}'))\n"
        "before = count('task'), count('fd'), threading.active_count()\n"
        "import lowtide\n"
        "print(before == (count('task'), count('fd'), threading.active_count()))"
    )
    assert fresh(script).strip() == "True"


def test_importing_lowtide_reads_no_environment() -> None:
    """Python's own modules look things up; none of the look-ups may come from a file of ours."""
    script = """
import numpy, os, sys
own = []
real = os._Environ.__getitem__
def look(self, key):
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.endswith(("os.py", "_collections_abc.py")):
        frame = frame.f_back
    if frame is not None and "/lowtide/" in frame.f_code.co_filename:
        own.append((key, frame.f_code.co_filename))
    return real(self, key)
os._Environ.__getitem__ = look
import lowtide
print(own)
"""
    assert fresh(script).strip() == "[]"
