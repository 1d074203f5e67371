"""The pytest plugin from outside: whole pytest runs in processes of their own, as a user starts them."""

from __future__ import annotations

import importlib.metadata
import os
from pathlib import Path
from xml.etree import ElementTree

import pytest

from lowtide.pytest_plugin import can_measure

pytest_plugins = ["pytester"]

SOURCE = Path(__file__).parents[2] / "src"

if not can_measure():
    pytest.skip("NOT TESTED: the pytest plugin. This system has no /proc.", allow_module_level=True)


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A project of its own with the plugin installed, the way pip would have it: found by its entry point."""
    places = [str(SOURCE)]
    names = {each.name for each in importlib.metadata.entry_points(group="pytest11")}
    # Plugins that happen to be installed here (zarr's, hypothesis's) take a second of imports in each of these runs.
    others = [f"-p no:{name}" for name in sorted(names) if not name.startswith(("lowtide", "xdist"))]
    monkeypatch.setenv("PYTEST_ADDOPTS", " ".join(others))
    if "lowtide" not in names:
        info = pytester.path / "site" / "lowtide-0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: lowtide\nVersion: 0\n")
        (info / "entry_points.txt").write_text("[pytest11]\nlowtide = lowtide.pytest_plugin\n")
        places.append(str(info.parent))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(places))
    pytester.makeini("[pytest]\naddopts = --strict-markers --strict-config\nfilterwarnings = error\n")
    return pytester


def test_growth_beyond_the_budget_fails_with_measured_against_allowed(run: pytest.Pytester) -> None:
    run.makepyfile("""
        import time, pytest

        @pytest.mark.memory_budget(anon="64 MiB", mapped="16 MiB")
        def test_too_much():
            kept = b"x" * (80 * 1024**2)
            time.sleep(0.05)
    """)
    result = run.runpytest_subprocess("-rN")
    result.assert_outcomes(failed=1)
    anon = r"anon grew 8\d\.\d MiB, allowed 64\.0 MiB \(peak at \d+\.\d s\)"
    result.stdout.re_match_lines([rf"memory_budget: {anon}; mapped grew .*, allowed 16\.0 MiB"])


def test_growth_within_the_budget_passes_and_the_kinds_are_told_apart(
    run: pytest.Pytester, disk_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.makepyfile("""
        import mmap, os, pytest
        from pathlib import Path

        @pytest.mark.memory_budget(anon="64 MiB", mapped="16 MiB")
        def test_small():
            assert len(b"x" * (8 * 1024**2)) > 0

        @pytest.fixture
        def pages():
            path = Path(os.environ["ON_A_DISK"], "data")
            path.write_bytes(bytes(32 * 1024**2))
            with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as pages:
                yield pages

        @pytest.mark.memory_budget(anon="16 MiB", mapped="64 MiB")
        def test_file_pages_are_not_heap(pages):
            assert sum(pages[place] for place in range(0, len(pages), 4096)) == 0

        @pytest.mark.memory_budget(mapped="16 MiB")
        def test_file_pages_are_mapped(pages):
            assert sum(pages[place] for place in range(0, len(pages), 4096)) == 0
    """)
    monkeypatch.setenv("ON_A_DISK", str(disk_path))  # pages of a file on tmpfs would be shared memory
    result = run.runpytest_subprocess("-v")
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(["*memory_budget: mapped grew 3*MiB, allowed 16.0 MiB*"])


def test_a_peak_between_two_samples_is_caught_by_the_kernels_mark(run: pytest.Pytester) -> None:
    run.makepyfile("""
        import pytest

        @pytest.mark.memory_budget(anon="32 MiB")
        def test_spike():
            for _ in range(3):
                len(b"x" * (200 * 1024**2))  # allocated and freed without giving other threads a turn

        @pytest.mark.memory_budget(rss="32 MiB")
        def test_the_same_by_rss():
            len(b"x" * (200 * 1024**2))
    """)
    result = run.runpytest_subprocess()
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(["*memory_budget: rss grew 20*MiB, allowed 32.0 MiB"])


def test_a_test_that_fails_by_itself_keeps_its_own_failure_and_adds_its_memory(run: pytest.Pytester) -> None:
    run.makepyfile("""
        import pytest

        @pytest.mark.memory_budget(anon="64 MiB")
        def test_wrong():
            assert 1 + 1 == 3
    """)
    result = run.runpytest_subprocess()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*assert (1 + 1) == 3*", "*Captured memory call*", "most growth by kind: anon *"])
    result.stdout.no_fnmatch_line("*memory_budget: anon*")


def test_a_wrong_budget_fails_its_own_test_and_no_other(run: pytest.Pytester) -> None:
    run.makepyfile("""
        import pytest

        def test_first():
            open("ran", "w").close()

        @pytest.mark.memory_budget(anno="1 MiB")
        def test_it():
            open("ran it", "w").close()
    """)
    result = run.runpytest_subprocess()
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["memory_budget: anno: expected one of anon, *Did you mean 'anon'?"])
    assert (run.path / "ran").exists()
    assert not (run.path / "ran it").exists()


def test_the_fixture_gives_growth_so_far_and_forgets_a_warm_up(run: pytest.Pytester) -> None:
    run.makepyfile("""
        MIB = 1024**2

        def test_growth(memory_growth):
            assert memory_growth.anon < 4 * MIB
            kept = bytearray(b"x") * (40 * MIB)
            assert 38 * MIB < memory_growth.anon < 48 * MIB
            assert memory_growth.rss >= 38 * MIB
            assert memory_growth.mapped < 8 * MIB
            del kept
            assert memory_growth.anon < 8 * MIB
            assert memory_growth.peak["anon"] > 38 * MIB
            memory_growth.restart()
            assert memory_growth.peak["anon"] < 8 * MIB

        def test_page_cache_of_a_file(memory_growth, tmp_path):
            path = tmp_path / "data"
            memory_growth.count(path)
            path.write_bytes(bytes(20 * MIB))
            assert 19 * MIB < memory_growth.cache < 22 * MIB
    """)
    run.runpytest_subprocess("-v").assert_outcomes(passed=2)


def test_a_cache_budget_counts_its_files_and_refuses_to_guard_none(run: pytest.Pytester) -> None:
    run.makepyfile("""
        import pytest
        from pathlib import Path

        @pytest.mark.memory_budget(cache="8 MiB", files="data")
        def test_left_behind():
            Path("data").write_bytes(bytes(20 * 1024**2))

        @pytest.mark.memory_budget(cache="8 MiB")
        def test_no_files():
            pass
    """)
    result = run.runpytest_subprocess()
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(["*cache grew * MiB, allowed 8.00 MiB*"])
    result.stdout.fnmatch_lines(["*cache: expected files to count, got none. Add files=*"])


@pytest.mark.slow
def test_a_fresh_test_runs_in_another_process_and_every_outcome_comes_back(run: pytest.Pytester) -> None:
    run.makepyfile("""
        import os, signal, time, pytest

        HERE = os.environ.setdefault("PARENT", str(os.getpid()))
        fresh = pytest.mark.memory_budget(anon="64 MiB", fresh=True)

        @pytest.fixture
        def elsewhere():
            assert os.getpid() != int(HERE), "a fixture ran in the parent"

        @fresh
        @pytest.mark.parametrize("word", ["a b", "ünï::[x]"])
        def test_passes(elsewhere, word, record_property):
            record_property("where", os.getpid())
            assert os.getpid() != int(HERE)

        @fresh
        def test_breaks_the_budget(elsewhere):
            kept = b"x" * (80 * 1024**2)
            time.sleep(0.03)

        @fresh
        def test_fails(elsewhere):
            print("said before the end")
            assert {"a": 1} == {"a": 2}

        @fresh
        def test_skips(elsewhere):
            pytest.skip("not today")

        @fresh
        @pytest.mark.xfail(reason="known", raises=ZeroDivisionError)
        def test_fails_as_expected(elsewhere):
            1 / 0

        @fresh
        @pytest.mark.xfail(strict=True)
        def test_passes_unexpectedly(elsewhere):
            pass

        @fresh
        def test_dies(elsewhere):
            os.kill(os.getpid(), signal.SIGKILL)

        @fresh
        def test_fixture_fails(no_such_fixture):
            pass

        class TestInAClass:
            @fresh
            def test_method(self, elsewhere):
                assert self is not None

        def test_ordinary():
            assert os.getpid() == int(HERE)
    """)
    result = run.runpytest_subprocess("-rA", "--junitxml=junit.xml", "-k", "not nothing_at_all")
    result.assert_outcomes(passed=4, failed=5, skipped=1, xfailed=1)
    result.stdout.fnmatch_lines(["*memory_budget: anon grew 8*MiB, allowed 64.0 MiB*"])
    result.stdout.fnmatch_lines(["*{'a': 1} == {'a': 2}*", "*said before the end*"])
    result.stdout.fnmatch_lines(["*the fresh process was killed by signal 9 (Killed)*"])
    result.stdout.fnmatch_lines(["*fixture 'no_such_fixture' not found*"])
    result.stdout.fnmatch_lines(["SKIPPED*not today"])
    result.stdout.fnmatch_lines(["*XPASS(strict)*"])
    junit = ElementTree.parse(run.path / "junit.xml")
    names = {each.get("name") for each in junit.iter("property")}
    assert {"where", "memory_anon", "memory_rss"} <= names


@pytest.mark.slow
def test_a_fresh_process_shows_growth_that_a_used_one_hides(run: pytest.Pytester) -> None:
    """Heap that an earlier test freed is used again without growing; the first run here is that control."""
    body = """
        import pytest

        def pieces():
            return [bytearray(b"x" * 4096) for _ in range(16_000)]

        def test_leaves_free_heap_behind():
            used = pieces()
            pytest.above = bytearray(4096)  # on top of it, so that the heap cannot shrink when `used` is freed

        @pytest.mark.memory_budget(anon="32 MiB"FRESH)
        def test_grows():
            kept = pieces()
    """
    run.makepyfile(test_used=body.replace("FRESH", ""), test_fresh=body.replace("FRESH", ", fresh=True"))
    run.runpytest_subprocess("test_used.py").assert_outcomes(passed=2)
    run.runpytest_subprocess("test_fresh.py").assert_outcomes(passed=1, failed=1)


@pytest.mark.slow
def test_it_works_under_xdist_with_and_without_fresh_processes(run: pytest.Pytester) -> None:
    run.makepyfile("""
        import time, pytest

        @pytest.mark.memory_budget(anon="32 MiB", fresh=True)
        def test_fresh_and_too_much():
            kept = b"x" * (50 * 1024**2); time.sleep(0.03)

        @pytest.mark.memory_budget(anon="32 MiB")
        def test_too_much():
            kept = b"x" * (50 * 1024**2); time.sleep(0.03)

        @pytest.mark.memory_budget(anon="32 MiB", fresh=True)
        def test_fine():
            pass

        def test_growth(memory_growth):
            assert memory_growth.anon < 2**20
    """)
    result = run.runpytest_subprocess("-n", "2")
    result.assert_outcomes(passed=2, failed=2)
    assert str(result.stdout).count("memory_budget: anon grew 5") >= 2


@pytest.mark.slow
def test_a_wrong_budget_under_xdist_is_named_too(run: pytest.Pytester) -> None:
    run.makepyfile("""
        import pytest

        @pytest.mark.memory_budget(anno="1 MiB")
        def test_it():
            pass
    """)
    result = run.runpytest_subprocess("-n", "1")
    assert result.ret != 0
    assert "Did you mean 'anon'?" in str(result.stdout) + str(result.stderr)


def test_the_mark_is_listed_and_no_switch_is_needed(run: pytest.Pytester) -> None:
    result = run.runpytest_subprocess("--markers")
    result.stdout.fnmatch_lines(["@pytest.mark.memory_budget(anon=SIZE, mapped=SIZE, *"])


def test_an_unused_plugin_starts_no_thread_and_loads_no_framework(run: pytest.Pytester) -> None:
    run.makepyfile("""
        import sys, threading

        def test_light():
            assert threading.active_count() == 1
            heavy = {"torch", "matplotlib", "rich", "psutil", "lowtide.report", "lowtide.torch"}
            assert not heavy & set(sys.modules)
            assert "lowtide.pytest_plugin" in sys.modules
    """)
    run.runpytest_subprocess().assert_outcomes(passed=1)
