"""Which memory cgroup a process is in, what it and its ancestors allow, and what it holds.

A process's limit is the smallest over its cgroup and every ancestor, so a ``Cgroup`` is the list of those directories,
nearest first. Version 1 (memory controller in its own hierarchy), version 2 and hybrids of both are read; inside a
cgroup namespace, or a container that mounts only its own subtree, what is above the mount cannot be seen and is left
out. Cost: a few small reads in /proc and /sys, well under a millisecond. ``root`` lets a recorded tree replace "/".
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/")
_NO_LIMIT = 2**60  # version 1 writes "none" as the largest page-aligned int64


@dataclass(frozen=True)
class Cgroup:
    """A memory cgroup: its version, its path as the kernel names it, and its directory followed by its ancestors'."""

    version: int
    path: str
    directories: tuple[Path, ...]

    def path_at(self, height: int) -> str:
        """The path of the directory ``height`` steps above its own."""
        return self.path.rstrip("/").rsplit("/", height)[0] or "/"


def memory_cgroup(pid: int | None = None, *, root: Path = ROOT) -> Cgroup | None:
    """The memory cgroup of a process (of this one by default), or None if none is mounted or /proc is missing."""
    process = root / "proc" / ("self" if pid is None else str(pid))
    try:
        paths = _paths_by_version((process / "cgroup").read_text())
    except OSError:
        return None
    # A hybrid machine lists both. The memory controller is in only one hierarchy; if that is v1, v1 names it.
    for version, mount_root, point in _all_mounts(root):
        path = paths.get(version)
        directories = _directories(path, mount_root, point, version) if path is not None else ()
        if path is not None and directories:
            return Cgroup(version, path, directories)
    return None


def cgroup_at(path: str, *, root: Path = ROOT) -> Cgroup:
    """A memory cgroup by its directory, or its path as in /proc/PID/cgroup; FileNotFoundError with the way out."""
    for version, mount_root, point in _all_mounts(root):
        place = Path(path)
        directory = place if place.is_relative_to(point) else point / path.lstrip("/")
        if not directory.is_dir():
            continue
        inside = "/" + str(directory.relative_to(point)).removeprefix(".")
        name = inside if mount_root == "/" else mount_root + inside.rstrip("/")
        directories = _directories(inside, "/", point, version)
        if directories:
            return Cgroup(version, name, directories)
    raise FileNotFoundError(
        f"{path}: expected a directory of a memory cgroup, got none. "
        "See /proc/PID/cgroup of a process in it, and look below /sys/fs/cgroup."
    )


def container_cgroup(name: str, *, root: Path = ROOT) -> Cgroup:
    """The cgroup of a container by its id, or the beginning of it: docker, podman, containerd and Kubernetes all put
    the id into the directory's name."""
    if not re.fullmatch(r"[0-9a-f]{6,64}", name):
        raise ValueError(
            f"{name}: expected a container id of 6 to 64 hexadecimal digits, got {name!r}. "
            "Find it with `docker ps --no-trunc`, `podman ps` or `crictl ps`."
        )
    found: dict[str, Cgroup] = {}
    hidden = 0
    for version, _, point in _all_mounts(root):
        for place, directories, _ in os.walk(point):
            for each in list(directories):
                match = re.search(r"(?:^|[-:])([0-9a-f]{12,64})(?:\.scope)?$", each)
                if match is not None and match[1].startswith(name):
                    inside = "/" + str(Path(place, each).relative_to(point))
                    chain = _directories(inside, "/", point, version) or (Path(place, each),)
                    found.setdefault(match[1], Cgroup(version, inside, chain))
                    directories.remove(each)  # do not search below it
                elif not os.access(Path(place, each), os.R_OK | os.X_OK):
                    hidden += 1
    if len(found) == 1:
        return next(iter(found.values()))
    if found:
        raise ValueError(f"{name}: expected the id of one container, got {len(found)} that begin with it. Write more.")
    why = f"; {hidden} cgroups could not be read as this user" if hidden else ""
    raise FileNotFoundError(
        f"{name}: expected a container on this machine, got none with a memory cgroup{why}. "
        "Check it with `docker ps --no-trunc`, or name its cgroup with --cgroup."
    )


def _all_mounts(root: Path) -> list[tuple[int, str, Path]]:
    """(version, root inside the hierarchy, mount point) of every memory hierarchy seen here, version 1 first."""
    try:
        mounts = (root / "proc/self/mountinfo").read_text()
    except OSError:
        return []
    return [
        (version, mount_root, root / point.lstrip("/"))
        for version in (1, 2)
        for mount_root, point in _cgroup_mounts(mounts, version)
    ]


def directory_limit(directory: Path, version: int) -> int | None:
    """The most that one cgroup directory lets a program use at full speed; None if it sets no limit."""
    high = throttle_limit(directory) if version == 2 else None
    kill = kill_limit(directory, version)
    return min(high, kill) if high is not None and kill is not None else high if kill is None else kill


def throttle_limit(directory: Path) -> int | None:
    """The size from which version 2 slows a program down and reclaims pages, but does not kill."""
    return read_int(directory / "memory.high")


def kill_limit(directory: Path, version: int) -> int | None:
    """The size at which the kernel kills, as set by one cgroup directory; None if it sets none."""
    name = "memory.max" if version == 2 else "memory.limit_in_bytes"
    found = [value for value in [read_int(directory / name)] if value is not None]
    if version == 1:  # the kernel's own minimum over all ancestors, even those we cannot see
        found += [read_stat(directory).get("hierarchical_memory_limit", _NO_LIMIT)]
    found = [value for value in found if value < _NO_LIMIT]
    return min(found) if found else None


def directory_usage(directory: Path, version: int) -> int | None:
    """Bytes charged to the cgroup and those below it, reclaimable ones too; None at a v2 root, which keeps no count."""
    return read_int(directory / ("memory.current" if version == 2 else "memory.usage_in_bytes"))


def unreclaimable(stat: dict[str, int], version: int) -> int:
    """Bytes that must stay as long as nothing is swapped: heap and shared memory, locked pages, the kernel's own.

    The LRU lists are disjoint, whereas ``anon + shmem + unevictable`` would count locked heap twice.
    """
    prefix = "total_" if version == 1 else ""
    lists = sum(stat.get(prefix + name, 0) for name in ("inactive_anon", "active_anon", "unevictable"))
    kernel = sum(stat.get(name, 0) for name in ("slab_unreclaimable", "kernel_stack", "pagetables"))
    return lists + kernel


def read_stat(directory: Path) -> dict[str, int]:
    """``memory.stat`` as a dict; empty when it cannot be read."""
    return read_pairs(directory / "memory.stat")


def read_pairs(path: Path) -> dict[str, int]:
    """A file of ``name value`` lines as a dict; other lines are ignored."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return {}
    pairs = (line.split() for line in lines)
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


def read_int(path: Path) -> int | None:
    """The number in a one-line file; None for ``max``, for anything else and for a missing file."""
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def _paths_by_version(memberships: str) -> dict[int, str]:
    paths: dict[int, str] = {}
    for line in memberships.splitlines():
        number, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            paths[1] = path
        elif number == "0" and controllers == "":
            paths[2] = path
    return paths


def _cgroup_mounts(mounts: str, version: int) -> list[tuple[str, str]]:
    """(root of the mount inside the hierarchy, mount point) of every mount of that version's memory hierarchy."""
    found = []
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        fields, (kind, _, options) = before.split(), after.split(" ", 2)
        wanted = kind == "cgroup2" if version == 2 else kind == "cgroup" and "memory" in options.split(",")
        if wanted:
            found.append((unescape(fields[3]), unescape(fields[4])))
    return found


def _directories(path: str, mount_root: str, mount_point: Path, version: int) -> tuple[Path, ...]:
    """The cgroup's directory and its ancestors up to the mount point; that alone if the path is outside it."""
    inside = _relative(path, mount_root)
    own = mount_point / inside if inside is not None else mount_point
    if not own.is_dir():
        own = mount_point
    chain = [own]
    while chain[-1] != mount_point:
        chain.append(chain[-1].parent)
    # The v2 root of a hybrid machine has no memory files: then this hierarchy says nothing about memory.
    probe = "memory.stat" if version == 2 else "memory.limit_in_bytes"
    return tuple(chain) if any((directory / probe).exists() for directory in chain) else ()


def _relative(path: str, mount_root: str) -> str | None:
    if ".." in path.split("/"):  # the process is outside our cgroup namespace
        return None
    if mount_root == "/":
        return path.lstrip("/")
    if path == mount_root or path.startswith(mount_root + "/"):
        return path[len(mount_root) :].lstrip("/")
    return None


def unescape(field: str) -> str:
    """A path as mountinfo writes it: blanks and backslashes are octal escapes."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), field)
