"""Whole cgroups: real ones with a limit where this machine lets us make them, recorded trees of both versions
otherwise."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.memory.programs import limited as cgroup_of_our_own
from tests.memory.programs import removed

from lowtide.machine import cgroup_at, container_cgroup

MIB = 1024**2
DOCTOR = [sys.executable, "-m", "lowtide", "doctor"]


@contextmanager
def limited(size: int) -> Iterator[Path]:
    """A memory cgroup of our own with a limit; skips where this machine refuses one."""
    with ExitStack() as held:
        try:
            directory = held.enter_context(cgroup_of_our_own(size))
        except OSError as problem:
            pytest.skip(f"NOT TESTED: this machine refuses a memory cgroup of our own ({problem})")
        yield directory


INSIDE = "import os, sys, time\nopen(sys.argv[1] + '/cgroup.procs', 'w').write(str(os.getpid()))\n"
CLIMBS = INSIDE + "kept = []\nwhile True:\n kept.append(bytearray(os.urandom(4096)) * 256)\n time.sleep(0.01)\n"


@pytest.mark.slow
def test_a_program_killed_by_its_cgroup_is_said_to_be_with_the_limit_and_its_heap() -> None:
    with limited(100 * MIB) as directory:
        words = [*DOCTOR, "--json", "--", sys.executable, "-c", CLIMBS, str(directory)]
        done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 137
    found = json.loads(done.stdout)
    ended = found["ended"]
    assert (ended["how"], ended["code"], ended["limit"]) == ("oom", 137, 100 * MIB), ended
    assert ended["sentence"].startswith("killed by the kernel: the cgroup reached 100 MiB, of which anon ")
    assert found["verdict"]["headline"].startswith("Killed by the kernel: ")
    assert "in about" not in json.dumps(found["verdict"]["risk"])  # no time to live for what is dead
    assert found["held"]["anon"]["owners"][0]["what"] == "process"


def test_a_program_that_kills_itself_was_not_killed_for_want_of_memory() -> None:
    words = [*DOCTOR, "--json", "--", sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"]
    ended = json.loads(subprocess.run(words, capture_output=True, text=True).stdout)["ended"]
    assert (ended["how"], ended["code"], ended["signal"]) == ("signal", 137, "SIGKILL")


READS = (
    INSIDE
    + """
path = sys.argv[2]
fd = os.open(path, os.O_RDONLY)
os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
buffer = bytearray(2**20)
for _ in range(4):
    for offset in range(0, os.fstat(fd).st_size, len(buffer)):
        os.preadv(fd, [buffer], offset)
print("ready", flush=True)
while True:
    for offset in range(0, os.fstat(fd).st_size, len(buffer)):
        os.preadv(fd, [buffer], offset)
        time.sleep(0.005)
"""
)
HALF = (
    INSIDE
    + """
kept = [bytearray(os.urandom(4096)) * 256 * 110]
print("ready", flush=True)
for _ in range(1000):
    kept.append(bytearray(os.urandom(4096)) * 64)
    time.sleep(0.1)
"""
)


def judged(directory: Path, program: str, *arguments: str) -> dict[str, Any]:
    """The verdict on a whole cgroup in which a program runs."""
    words = [sys.executable, "-c", program, str(directory), *arguments]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        doctor = [*DOCTOR, "--json", "--cgroup", str(directory), "--seconds", "5"]
        done = subprocess.run(doctor, capture_output=True, text=True)
        child.kill()
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.slow
def test_a_cgroup_full_of_file_pages_touched_twice_is_in_no_danger(disk_path: Path) -> None:
    path = disk_path / "hot.bin"
    path.write_bytes(os.urandom(MIB) * 210)
    os.sync()
    with limited(220 * MIB) as directory:
        found = judged(directory, READS, str(path))
    cgroup = found["last"]["cgroup"]
    working_set = cgroup["current"] - cgroup["inactive_file"]
    assert working_set > 0.85 * 220 * MIB, cgroup  # what an alert on the working set would see
    assert found["verdict"]["danger"] is False, found["verdict"]["risk"]
    assert cgroup["unreclaimable"] < 0.4 * 220 * MIB
    assert str(path) in json.dumps(found["held"]["cache"]["owners"])


@pytest.mark.slow
def test_a_cgroup_at_sixty_percent_whose_heap_climbs_is_in_danger() -> None:
    with limited(200 * MIB) as directory:
        found = judged(directory, HALF)
    oom = next(risk for risk in found["verdict"]["risk"] if risk["what"] == "oom")
    assert found["verdict"]["grew"] == "anon", json.dumps(found["verdict"], indent=1)
    assert found["verdict"]["danger"] is True
    assert oom["level"] == "high"
    assert 0 < oom["seconds"] < 1800
    assert oom["used"] < 0.8 * 200 * MIB
    assert found["last"]["cgroup"]["limit"] == 200 * MIB


@pytest.mark.slow
def test_a_cgroup_that_ends_while_it_is_watched_still_gets_its_verdict() -> None:
    with limited(100 * MIB) as directory:
        words = [sys.executable, "-c", INSIDE + "print('ready', flush=True)\ninput()", str(directory)]
        with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == b"ready\n"
            doctor = [*DOCTOR, "--json", "--every", "0.2s", "--cgroup", str(directory)]
            pipe = subprocess.PIPE
            with subprocess.Popen(doctor, stdout=pipe, stderr=pipe, text=True) as watching:
                assert watching.stderr is not None
                assert " lowtide after=" in watching.stderr.readline()
                child.communicate(b"\n")
                removed(directory)
                out, _ = watching.communicate(timeout=240)
    found = json.loads(out)
    assert found["ended"]["how"] == "gone"
    assert found["held"]["anon"]["peak"] > 0
    assert watching.returncode == 0


@pytest.mark.slow
def test_a_cgroup_of_another_user_is_measured_as_far_as_permissions_go() -> None:
    with limited(100 * MIB) as directory:
        words = [sys.executable, "-c", INSIDE + "print('ready', flush=True)\ninput()", str(directory)]
        with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == b"ready\n"
            program = (
                "import os, sys; from lowtide.cli import main; import lowtide.cli.doctor, rich.console\n"
                "os.setgid(65534); os.setuid(65534); sys.exit(main(sys.argv[1:]))"
            )
            options = ["doctor", "--json", "--cgroup", str(directory), "--seconds", "1"]
            done = subprocess.run([sys.executable, "-c", program, *options], capture_output=True, text=True)
            child.communicate(b"\n")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["held"]["anon"]["peak"] > MIB  # /proc/PID/status is public
    assert {"cache", "sharing"} <= set(found["missing"])


ID = "4f0c" + "a1b2c3d4" * 7 + "0000"
NAMES = {
    "docker, version 1": (1, f"docker/{ID}"),
    "docker, version 2": (2, f"system.slice/docker-{ID}.scope"),
    "containerd in a pod": (2, f"kubepods.slice/kubepods-pod7.slice/cri-containerd-{ID}.scope"),
    "podman": (2, f"machine.slice/libpod-{ID}.scope"),
}
MOUNTS = {
    1: "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n",
    2: "30 24 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n",
}


def recorded(root: Path, version: int, *paths: str) -> Path:
    base = root / ("sys/fs/cgroup/memory" if version == 1 else "sys/fs/cgroup")
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/mountinfo").write_text(MOUNTS[version])
    for path in paths:
        (base / path).mkdir(parents=True)
        (base / path / "memory.stat").write_text("anon 1\n")
        (base / path / "memory.limit_in_bytes").write_text("4096\n")
    return base


@pytest.mark.parametrize("how", NAMES)
def test_a_container_is_found_by_its_id_however_its_cgroup_is_named(how: str, tmp_path: Path) -> None:
    version, path = NAMES[how]
    base = recorded(tmp_path, version, path, "docker/" + "b" * 64)
    for name in (ID, ID[:12]):
        cgroup = container_cgroup(name, root=tmp_path)
        assert (cgroup.version, cgroup.path, cgroup.directories[0]) == (version, f"/{path}", base / path)
    assert cgroup_at(f"/{path}", root=tmp_path).directories[0] == base / path
    assert cgroup_at(str(base / path), root=tmp_path).path == f"/{path}"


def test_an_id_that_fits_two_containers_or_none_is_refused(tmp_path: Path) -> None:
    recorded(tmp_path, 2, f"docker/{ID}", f"docker/{ID[:20]}{'f' * 44}")
    with pytest.raises(ValueError, match="expected the id of one container, got 2 that begin with it"):
        container_cgroup(ID[:12], root=tmp_path)
    with pytest.raises(FileNotFoundError, match="expected a container on this machine, got none"):
        container_cgroup("e" * 12, root=tmp_path)
    with pytest.raises(FileNotFoundError, match="expected a directory of a memory cgroup, got none"):
        cgroup_at("/docker/none", root=tmp_path)
