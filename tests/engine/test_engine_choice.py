"""Which engine is in use and why; and a broken build is not hidden by the twin."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import lowtide
from lowtide import engine as _native
from lowtide.engine import column_sums, document_planes, id_checks, mapping, packed_plans, permutation, reads

HIDDEN = """
import sys
class Hide:
    def find_spec(self, name, path=None, target=None):
        if name == "lowtide.engine._core":
            raise ImportError("No module named '_core'")
sys.meta_path.insert(0, Hide())
"""


def fresh(script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    everything = {**os.environ, "PYTHONPATH": str(Path(lowtide.__file__).parents[1]), **environment}
    return subprocess.run([sys.executable, "-c", script], env=everything, capture_output=True, text=True, timeout=120)


def test_where_a_compiler_and_headers_are_the_extension_loads() -> None:
    """Optional must not hide a broken build."""
    compiler = shutil.which((sysconfig.get_config_var("CC") or "cc").split()[0]) or shutil.which("cc")
    if sys.platform != "linux" or compiler is None or not Path(sysconfig.get_path("include"), "Python.h").exists():
        pytest.skip("NOT TESTED: that the extension loads - there is no C compiler or no Python.h here")
    found = fresh("import lowtide.engine as _native; print(_native.engine('native').name)")
    assert found.returncode == 0, found.stderr
    assert found.stdout == "native\n"


def test_the_environment_is_read_at_first_use_and_not_at_import() -> None:
    script = (
        "import os, lowtide.engine as _native; os.environ['LOWTIDE_ENGINE'] = 'python'; print(_native.engine().why)"
    )
    assert fresh(script, LOWTIDE_ENGINE="auto").stdout == "LOWTIDE_ENGINE=python\n"


def test_what_is_asked_for_wins_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOWTIDE_ENGINE", "native")
    assert _native.engine("python").why == "engine='python' was asked for"


def test_unknown_engines_are_refused_with_those_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="engine: expected one of auto, native, python, got 'rust'"):
        _native.engine("rust")
    monkeypatch.setenv("LOWTIDE_ENGINE", "fast")
    with pytest.raises(ValueError, match="LOWTIDE_ENGINE: expected one of auto, native, python, got 'fast'"):
        _native.engine()


def test_without_the_extension_the_twin_serves_and_says_why() -> None:
    script = (
        HIDDEN + "import lowtide.engine as _native; e = _native.engine(); print(e.name, e.why, e.queue('announce'))"
    )
    found = fresh(script, LOWTIDE_ENGINE="auto")
    assert found.returncode == 0, found.stderr
    assert found.stdout.startswith("python ") and "the extension does not load" in found.stdout


def test_native_where_it_cannot_be_had_is_refused_with_the_reason() -> None:
    found = fresh(HIDDEN + "import lowtide.engine as _native; _native.engine('native')")
    assert "ValueError: engine: expected the native engine (engine='native' was asked for), got none" in found.stderr
    found = fresh(HIDDEN + "import lowtide.engine as _native; _native.engine()", LOWTIDE_ENGINE="native")
    assert "(LOWTIDE_ENGINE=native), got none" in found.stderr


def test_a_note_of_the_install_is_the_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    note = tmp_path / "not_built.txt"
    note.write_text("no C compiler (cc) was found at install\n")
    monkeypatch.setattr(_native, "NOTE", note)
    assert _native.why_missing() == "the extension was not built: no C compiler (cc) was found at install"


FILTERED = """
import ctypes, struct
libc = ctypes.CDLL(None, use_errno=True)
code = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0x7FFF0000))  # BPF: return SECCOMP_RET_ALLOW
class Program(ctypes.Structure):
    _fields_ = [("len", ctypes.c_ushort), ("filter", ctypes.c_void_p)]
program = Program(1, ctypes.cast(code, ctypes.c_void_p))
assert libc.prctl(38, 1, 0, 0, 0) == 0  # PR_SET_NO_NEW_PRIVS
assert libc.prctl(22, 2, ctypes.byref(program), 0, 0) == 0, ctypes.get_errno()  # PR_SET_SECCOMP, a filter
"""


def test_behind_a_seccomp_filter_io_uring_is_not_tried() -> None:
    if _native.engine().name != "native":
        pytest.skip("NOT TESTED: io_uring behind a seccomp filter - there is no native engine here")
    found = fresh(FILTERED + "import lowtide.engine as _native; print(_native.engine('native').unavailable())")
    if "AssertionError" in found.stderr:
        pytest.skip(f"NOT TESTED: io_uring behind a seccomp filter - none may be set here: {found.stderr}")
    assert found.returncode == 0, found.stderr
    assert "'uring': 'a seccomp filter is active" in found.stdout


def test_every_way_is_available_or_says_why_not() -> None:
    for engine in {_native.engine(), _native.engine("python")}:
        ways = engine.unavailable()
        assert list(ways) == list(_native.WAYS)
        assert ways["read"] == ways["announce"] == ""


def test_both_engines_have_the_same_names() -> None:
    core = pytest.importorskip("lowtide.engine._core", reason="NOT TESTED: the native engine - it was not built")
    mine = {name for name in dir(core) if not name.startswith("_")}
    assert mine == {
        "Lane",
        "Mapping",
        "Queue",
        "add_columns",
        "announce",
        "code_points",
        "copy_rows",
        "crc32",
        "crc32_of_ids",
        "cut_after",
        "documents_given",
        "documents_marked",
        "documents_noted",
        "fill_mapped",
        "hold_tables",
        "joined_texts",
        "locate",
        "packed_close",
        "packed_plan",
        "permute",
        "read_checked",
        "string_units",
        "unavailable",
        "unchanged",
        "unpack_lzf",
    }
    # A thread, and shortcuts past the parser and patterns of prepare and past h5py's own filter.
    shortcuts = {"joined_texts", "code_points", "string_units", "cut_after", "unpack_lzf"}
    for name in mine - {"Lane"} - shortcuts:
        twins = (reads, mapping, permutation, document_planes, packed_plans, column_sums, id_checks)
        assert any(hasattr(module, name) for module in twins), name
    for kind, other in ((core.Queue, reads.Queue), (core.Mapping, mapping.Mapping)):
        assert {name for name in dir(kind) if not name.startswith("_")} <= set(dir(other))
