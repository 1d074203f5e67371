"""How a program ended and who ended it: by what each killer leaves behind, and by real kills."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.memory.programs import PLANTED, limited

from lowtide.machine import Cgroup
from lowtide.memory import Sample
from lowtide.memory.measure.cgroup_usage import killed_by_oomd
from lowtide.memory.measure.ending import Kill, Traces, how_it_ended
from lowtide.memory.samples import CgroupSample, Ended, FileSample, TmpfsSample

MIB = 1024**2
FULL = CgroupSample(2, "/job", 99 * MIB, 100 * MIB, 95 * MIB, 0, 0, 0, 0, 0, 0, 0)
SAMPLE = Sample(1.0, 95 * MIB, 0, 0, 0, 0, 0, cgroup=FULL)


def ended(returned: int | None, traces: Traces, samples: Sequence[Sample] = (SAMPLE,)) -> Ended:
    return how_it_ended(returned, samples, traces, pid=10, pids={10, 11}, machine_memory=2**34)


def kill(pid: int, *, by_cgroup: bool = True) -> Kill:
    return Kill(pid, "python", 95 * MIB, by_cgroup, 100 * MIB if by_cgroup else None, "/job")


def test_a_kill_in_the_log_is_the_cgroups_or_the_machines() -> None:
    by_cgroup = ended(-9, Traces((kill(10),), log_readable=True))
    assert (by_cgroup.how, by_cgroup.by, by_cgroup.limit) == ("oom", "cgroup", 100 * MIB)
    by_machine = ended(-9, Traces((kill(10, by_cgroup=False),), log_readable=True))
    assert (by_machine.how, by_machine.by, by_machine.limit) == ("oom", "machine", 2**34)
    assert "the machine reached 16.0 GiB" in by_machine.sentence


def test_a_childs_kill_is_not_the_programs_own() -> None:
    """Neither when the parent lives on, nor when somebody else kills it later; a shell passes its command's on."""
    traces = Traces((kill(11),), log_readable=True, counted=1)
    lives = ended(0, traces)
    assert (lives.how, lives.killed) == ("exit", ("python (11)",))
    assert "the kernel killed python (11) of its processes" in lives.sentence
    foreign = ended(-9, traces)
    assert (foreign.how, foreign.by) == ("signal", "")
    assert "nobody left a trace" in foreign.sentence
    assert ended(137, traces).how == "oom"


def test_without_the_log_only_a_kill_at_the_end_in_a_full_cgroup_is_the_kernels() -> None:
    assert ended(-9, Traces(counted=1, counted_at_end=1)).by == "cgroup"
    earlier = ended(-9, Traces(counted=1, counted_at_end=0))
    assert (earlier.how, earlier.by) == ("signal", "")
    assert "1 process(es) of its cgroup were killed for want of memory meanwhile" in earlier.sentence
    roomy = replace(SAMPLE, cgroup=replace(FULL, current=10 * MIB, peak=20 * MIB))
    assert ended(-9, Traces(counted=1, counted_at_end=1), [roomy]).how == "signal"
    assert ended(-9, Traces()).how == "signal"


def test_a_kill_that_the_log_would_show_and_does_not_was_somebody_elses() -> None:
    sibling = replace(kill(77), name="other")
    found = ended(-9, Traces((sibling,), log_readable=True, counted=1, counted_at_end=1))
    assert found.how == "signal"
    assert "the kernel killed other (77) of its cgroup" in found.sentence


def test_a_signal_that_the_doctor_was_sent_is_said_to_be_passed_on() -> None:
    assert ended(-15, Traces(heard=frozenset({15}))).by == "passed on"
    assert ended(-15, Traces()).by == ""


def test_systemd_oomd_is_known_by_its_note() -> None:
    found = ended(-9, Traces(log_readable=True, by_oomd=2))
    assert (found.how, found.by) == ("oom", "systemd-oomd")
    assert ended(0, Traces(log_readable=True, by_oomd=2)).how == "exit"  # the control: it lives on


def test_the_note_of_systemd_oomd_is_read_from_the_cgroups_directory() -> None:
    """On a real directory of a cgroup2 filesystem, written as systemd-oomd does."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    point = next((fields[1] for fields in mounts if fields[2] == "cgroup2"), None)
    if point is None or os.geteuid() != 0:
        pytest.skip("NOT TESTED: notes on a cgroup need root and cgroup2 mounted")
    directory = Path(point, f"lowtide-test-{os.getpid()}")
    try:
        directory.mkdir()
    except OSError as problem:
        pytest.skip(f"NOT TESTED: this machine refuses a cgroup of our own ({problem})")
    try:
        cgroup = Cgroup(2, f"/{directory.name}", (directory, Path(point)))
        assert killed_by_oomd(cgroup) == 0
        try:
            os.setxattr(directory, "user.oomd_kill", b"3")
        except OSError as problem:
            pytest.skip(f"NOT TESTED: this kernel takes no notes on cgroups ({problem})")
        assert killed_by_oomd(cgroup) == 3
    finally:
        directory.rmdir()


def test_a_bus_error_names_the_full_tmpfs_or_the_file_that_was_cut_short() -> None:
    full = replace(SAMPLE, tmpfs=(TmpfsSample("/dev/shm", 64 * MIB, 64 * MIB),))
    found = ended(-signal.SIGBUS, Traces(), [SAMPLE, full])
    assert "/dev/shm is full, 64.0 MiB of 64.0 MiB" in found.sentence
    assert "--shm-size" in found.sentence
    assert "emptyDir" in found.sentence
    long = FileSample("/data/x.bin", 64 * MIB, 64 * MIB, 0, 64 * MIB, 0, "ext4", False)
    cut = replace(long, size=4096, cached=4096, mapped=0)
    samples = [replace(SAMPLE, files=(long,)), replace(SAMPLE, files=(cut,))]
    assert (
        "/data/x.bin was cut short while it was mapped, from 64.0 MiB to 4.00 KiB"
        in ended(-7, Traces(), samples).sentence
    )
    assert "neither a full tmpfs nor a file cut short was seen" in ended(-7, Traces()).sentence


def doctored(words: list[str], *, own_pids: bool = False) -> dict[str, Any]:
    doctor = [sys.executable, "-m", "lowtide", "doctor", "--json", "--", *words]
    if own_pids:  # the kernel's log has other pids: as good as no log
        doctor = ["unshare", "--pid", "--fork", "--mount-proc", *doctor]
    done = subprocess.run(doctor, capture_output=True, text=True)
    assert done.stdout, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def inside(directory: Path, *words: str) -> list[str]:
    return [sys.executable, str(PLANTED / "inside.py"), str(directory), *words]


@pytest.fixture
def cgroup() -> Any:
    try:
        with limited(100 * MIB) as directory:
            yield directory
    except OSError as problem:
        pytest.skip(f"NOT TESTED: this machine refuses a memory cgroup of our own ({problem})")


@pytest.mark.slow
@pytest.mark.parametrize("own_pids", [False, True])
def test_a_siblings_kill_and_then_a_foreign_signal_is_not_called_the_kernels(own_pids: bool, cgroup: Path) -> None:
    if own_pids and shutil.which("unshare") is None:
        pytest.skip("NOT TESTED: a namespace of pids needs unshare")
    # Waits until its cgroup has counted the sibling's kill, is seen alive after it, then is killed by its own hand.
    events = next(name for name in ("memory.oom_control", "memory.events") if (cgroup / name).exists())
    waits = (
        f"import os, time\nwhile 'oom_kill 1' not in open({str(cgroup / events)!r}).read(): time.sleep(0.05)\n"
        "time.sleep(1)\nos.kill(os.getpid(), 9)"
    )
    later = f"sleep 1.5; exec {sys.executable} {PLANTED / 'climbs.py'}"  # once the doctor has begun to watch
    sibling = subprocess.Popen(inside(cgroup, "sh", "-c", later))
    try:
        found = doctored(inside(cgroup, sys.executable, "-c", waits), own_pids=own_pids)
    finally:
        sibling.wait()
    assert sibling.returncode == -9
    assert (found["ended"]["how"], found["ended"]["by"]) == ("signal", ""), found["ended"]
    assert "nobody left a trace" in found["ended"]["sentence"]
    assert not any("did not happen" in risk["sentence"] for risk in found["verdict"]["risk"])


@pytest.mark.slow
def test_without_the_log_a_kill_by_its_own_cgroup_is_still_known(cgroup: Path) -> None:
    """The control to the one above."""
    if shutil.which("unshare") is None:
        pytest.skip("NOT TESTED: a namespace of pids needs unshare")
    found = doctored(inside(cgroup, sys.executable, str(PLANTED / "climbs.py")), own_pids=True)
    assert (found["ended"]["how"], found["ended"]["by"], found["ended"]["limit"]) == ("oom", "cgroup", 100 * MIB)


@pytest.mark.slow
def test_the_cgroup_is_the_one_it_was_moved_into_also_after_its_end(cgroup: Path) -> None:
    program = "import time; kept = bytearray(30 * 2**20); time.sleep(0.7)"
    moved = f"sleep 0.4; echo $$ > {cgroup}/cgroup.procs; exec {sys.executable} -c '{program}'"
    found = doctored(["sh", "-c", moved])
    assert found["last"]["cgroup"]["path"].endswith(cgroup.name)
    assert found["held"]["total"]["limit"] == 100 * MIB
    assert found["machine"]["limit"] == str(100 * MIB)
    assert found["machine"]["limit set by"].endswith(cgroup.name)


@pytest.mark.slow
def test_files_closed_in_a_tmpfs_are_charged_to_the_cgroup_and_in_no_process(cgroup: Path) -> None:
    name = f"/dev/shm/lowtide-test-{os.getpid()}-{time.monotonic_ns()}"
    program = (
        "import os, time\nfor n in range(8):\n"
        f" open({name!r} + str(n), 'wb').write(bytes(6 * 2**20)); time.sleep(0.2)\n"
        "time.sleep(1.5)"
    )
    try:
        found = doctored(inside(cgroup, sys.executable, "-c", program))
    finally:
        for number in range(8):
            Path(f"{name}{number}").unlink(missing_ok=True)
    total = found["held"]["total"]
    assert found["held"]["shmem"]["peak"] == pytest.approx(48 * MIB, rel=0.05)
    assert total["in_no_process"] == pytest.approx(48 * MIB, abs=8 * MIB)  # slab comes along
    line = next(
        each for each in found["verdict"]["evidence"] if each.startswith("charged to the cgroup, in no process")
    )
    assert "closed tmpfs files 48.0 MiB" in line
