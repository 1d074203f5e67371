"""What ``import lowtide``, its first use and the pytest plugin do to a process: which modules they load.

Its time is a benchmark's business (``python -m benchmarks.arrays``): a slow machine is no defect. A module that nobody
meant to load is one on every machine, and it is named here.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import lowtide

SOURCE = Path(lowtide.__file__).parent

# The modules of ours that opening and reading need, on first use. What measures, reports, trains or prints comes later.
ROOMS = {
    "lowtide.blocks": "addresses asking block_file block_store disk first_in_line marks messages objects",
    "lowtide": "arguments array create errors feed together tokens units windows",
    "lowtide.formats": "arrays corpus_parts foreign_directories guess header layout recognise refusals sources",
    "lowtide.formats.columns": "decoded kinds",
    "lowtide.formats.files": "decoded_rows hdf5 members memmap npy npz raw safetensors zarr",
    "lowtide.formats.tokens": "datatrove ends litgpt llmc manifest megatron token_files",
    "lowtide.engine": "column_sums document_planes id_checks mapping packed_plans permutation reads runs sinks",
    "lowtide.machine": "cgroups files limits opening pages",
    "lowtide.order": "feistel local locality mixing orders steps streams words",
    "lowtide.reading": "admission ahead blocks_ahead cursor fingerprint habits opened places plan state token_range"
    " window_reader",
    "lowtide.reading.documents": "boundaries boundary_index docs document_counts kept_arrays packed packing stride",
    "lowtide.reading.rows": "column_stats indexing iteration member_rows parts reader resident stratified",
    "lowtide.storage": "budget buffers forks many_files mapped own_files read release spans store watched_files",
    "lowtide.storage.writing": "behind output unfinished",
}
OURS = {*ROOMS, *(f"{room}.{name}" for room, names in ROOMS.items() for name in names.split())}

# The standard library's modules that ours may import when they are imported, with whatever those import in turn.
# Some of them numpy has loaded already; which, changes from one numpy and one Python to the next.
STANDARD = (
    "__future__, array, ast, bisect, collections.abc, contextlib, ctypes, dataclasses, errno, fcntl, functools,"
    " gc, glob, hashlib, itertools, json, math, mmap, operator, os, pathlib, platform, re, resource, stat, struct,"
    " sys, threading, types, typing, weakref, zlib"
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


def test_importing_lowtide_loads_no_other_module_of_ours_and_no_numpy() -> None:
    script = "import sys, lowtide\nprint([name for name in sys.modules if name.split('.')[0] in ('lowtide', 'numpy')])"
    assert fresh(script).strip() == "['lowtide']"


def test_opening_loads_these_modules_and_no_others() -> None:
    first = "import lowtide; lowtide.open, lowtide.open_tokens, lowtide.create, lowtide.together"
    more = loaded_by(first) - OURS - {"lowtide.engine._core"}  # where it was built
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


@pytest.mark.parametrize("first", ["create", "together"])
def test_a_function_is_not_lost_behind_the_module_of_its_name(first: str) -> None:
    """Python binds a module to its package when it is imported, whoever imports it."""
    script = f"import lowtide.array, lowtide.{first}, lowtide\nprint(type(lowtide.create), type(lowtide.together))"
    assert fresh(script).strip() == "<class 'function'> <class 'function'>"


def test_every_public_name_is_there_and_listed() -> None:
    assert set(lowtide.__all__) <= set(dir(lowtide))
    assert all(getattr(lowtide, name) for name in lowtide.__all__)
    with pytest.raises(AttributeError, match="module 'lowtide' has no attribute 'opne'"):
        lowtide.opne  # noqa: B018


def test_a_pytest_run_that_uses_no_budget_loads_at_most_four_modules_of_ours(tmp_path: Path) -> None:
    test = (
        "import sys\ndef test_one():\n    print('loaded', [n for n in sys.modules if n.split('.')[0] == 'lowtide'])\n"
    )
    mark = "import pytest\n@pytest.mark.memory_budget(anon='1 GiB')\n"
    for name, text in (("without", test), ("with", test.replace("def test", f"{mark}def test"))):
        (tmp_path / f"test_{name}.py").write_text(text)
    found = {}
    for name in ("without", "with"):
        words = [sys.executable, "-m", "pytest", "-s", "-q", "-p", "lowtide.pytest_plugin", f"test_{name}.py"]
        environment = {**os.environ, "PYTHONPATH": str(SOURCE.parent), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
        found[name] = ast.literal_eval(done.stdout.split("loaded ")[1].splitlines()[0].rstrip("."))
    assert found["without"] == ["lowtide", "lowtide.pytest_plugin"]
    assert "lowtide.pytest_plugin.meter" in found["with"]  # the control


def test_opening_starts_no_thread_and_opens_no_file() -> None:
    script = (
        "import os, numpy, threading\n"
        "count = lambda what: len(os.listdir(f'/proc/self/{what}'))\n"
        "before = count('task'), count('fd'), threading.active_count()\n"
        "import lowtide; lowtide.open\n"
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
lowtide.open, lowtide.open_tokens, lowtide.create, lowtide.together
print(own)
"""
    assert fresh(script).strip() == "[]"
