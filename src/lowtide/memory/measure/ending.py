"""How a watched program ended: by itself, by a signal, or killed for want of memory - and by whom.

The exit code says SIGKILL and not who sent it. The kernel's log, where it may be read, names the process, the cgroup
that ran full and the heap it had. Without it the cgroup's count of kills decides, but only kills that came after the
program was last seen alive, in a cgroup that stood at its limit: an earlier one was somebody else's. systemd-oomd notes
its kills on the cgroup's directory. A bus error is a tmpfs without room or a mapped file that was cut short, as far as
the samples show. Where nobody left a trace, that is said.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import signal
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from lowtide.memory.samples import CgroupSample, Ended, Sample
from lowtide.units import format_size

_KILLED = re.compile(
    r"(Memory cgroup out|Out) of memory[^:]*: Killed process (\d+) \((.*)\) total-vm:.*?anon-rss:(\d+)kB"
)
_LIMIT = re.compile(r"memory: usage \d+kB, limit (\d+)kB")
_WHERE = re.compile(r"oom-kill:.*?(?:oom_memcg=([^,]*),)?task_memcg=([^,]*),task=")
_RECORD = 8192  # bytes: the kernel's longest record
_MACHINE_PIDS = "pid:[4026531836]"  # PROC_PID_INIT_INO of the kernel: the first namespace of pids
_FULL = 0.97  # of a limit: the last pages are charged in steps
_NOBODY = "nobody left a trace: not the kernel, not systemd-oomd; schedulers, users and other programs leave none"


@dataclass(frozen=True)
class Kill:
    """One kill of the kernel's log."""

    pid: int
    name: str
    anon: int
    by_cgroup: bool
    limit: int | None = None  # of the cgroup that ran full
    cgroup: str = ""  # that of the killed process


@dataclass(frozen=True)
class Traces:
    """What the killers left behind: the kernel's log (``log_readable``: it would show a kill), the cgroup's count while
    it was watched and since the program was last seen alive, the notes of systemd-oomd."""

    kills: tuple[Kill, ...] = ()
    log_readable: bool = False
    counted: int = 0
    counted_at_end: int = 0
    by_oomd: int = 0
    heard: frozenset[int] = frozenset()  # signals that whoever watched was sent itself


class KernelLog:
    """What the kernel logs from now on. Nothing where /dev/kmsg may not be read."""

    def __init__(self, path: str = "/dev/kmsg") -> None:
        self._fd = -1
        with contextlib.suppress(OSError):
            self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.lseek(self._fd, 0, os.SEEK_END)

    @property
    def readable(self) -> bool:
        return self._fd >= 0

    @property
    def names_ours(self) -> bool:
        """Whether a kill of ours would be found in it: the kernel writes the pids of the machine, not a container's."""
        try:
            return self.readable and os.readlink("/proc/self/ns/pid") == _MACHINE_PIDS  # noqa: PTH115  # text
        except OSError:
            return False

    def kills(self) -> list[Kill]:
        """Every kill for want of memory since this log was opened, or last asked."""
        found = []
        limit, cgroup = None, ""
        while self.readable:
            try:
                record = os.read(self._fd, _RECORD).decode(errors="replace")
            except OSError as problem:
                if problem.errno == errno.EPIPE:  # older records were overwritten: go on with those that are there
                    continue
                break  # EAGAIN: no more
            if not record:
                break
            if (stated := _LIMIT.search(record)) is not None:
                limit = int(stated[1]) * 1024
            if (where := _WHERE.search(record)) is not None:
                cgroup = where[2]
            if (match := _KILLED.search(record)) is not None:
                by_cgroup = match[1] != "Out"
                found.append(
                    Kill(int(match[2]), match[3], int(match[4]) * 1024, by_cgroup, limit if by_cgroup else None, cgroup)
                )
        return found

    def close(self) -> None:
        if self.readable:
            os.close(self._fd)
            self._fd = -1


def how_it_ended(
    returned: int | None,
    samples: Sequence[Sample],
    traces: Traces,
    *,
    pid: int | None,
    pids: Collection[int],
    machine_memory: int,
) -> Ended:
    """``returned`` is Popen's return code, None where nobody waited for the process ``pid``; ``pids`` were all of its
    tree. A shell ends with code 137 when the command it ran was killed."""
    last = samples[-1] if samples else None
    ours = [kill for kill in traces.kills if kill.pid in pids]
    names = tuple(f"{kill.name} ({kill.pid})" for kill in ours)
    code = None if returned is None else 128 - returned if returned < 0 else returned
    may_be_kill = code == 128 + signal.SIGKILL or returned is None
    itself = ours if pid is None or returned == 128 + signal.SIGKILL else [kill for kill in ours if kill.pid == pid]
    if may_be_kill and (itself or (not traces.log_readable and _counted(traces, last))):
        return _killed(code, last, ours, names, machine_memory)
    if may_be_kill and traces.by_oomd > 0:
        sentence = f"killed by systemd-oomd, which noted {traces.by_oomd} kill(s) on its cgroup: memory pressure"
        return Ended("oom", code, "SIGKILL", sentence, names, by="systemd-oomd")
    others = _others(traces, ours, names, last)
    if returned is None:
        return Ended("gone", None, "", f"ended; its exit code went to its parent{others}", names)
    if returned >= 0:
        return Ended("exit", code, "", f"exit code {code}{others}", names)
    name = _signal_name(-returned)
    if -returned in traces.heard:
        sentence = f"killed by {name}, which lowtide also received or passed on{others}"
        return Ended("signal", code, name, sentence, names, by="passed on")
    why = _bus_error(samples) if -returned == signal.SIGBUS else ""
    if -returned == signal.SIGKILL:
        why = f", not by the kernel for want of memory; {_NOBODY}" if traces.log_readable else f"; {_NOBODY}"
        if not traces.log_readable and traces.counted_at_end == 0:
            why = f"; its cgroup counted no kill at that moment: {_NOBODY}"
    elif not why:
        why = ", not by the kernel for want of memory"
    return Ended("signal", code, name, f"killed by {name}{why}{others}", names)


def _counted(traces: Traces, last: Sample | None) -> bool:
    """Without the log: somebody of the cgroup was killed after this program was last seen alive, and the cgroup had
    come to its limit. Where there is no limit of its own, the machine's killer may have done it."""
    if traces.counted_at_end <= 0:
        return False
    cgroup = last.cgroup if last is not None else None
    if cgroup is None or cgroup.limit is None:
        return True
    return max(cgroup.current, cgroup.peak or 0) >= _FULL * cgroup.limit


def _others(traces: Traces, ours: list[Kill], names: tuple[str, ...], last: Sample | None) -> str:
    """Kills that were not its own end: of its children, or of others in its cgroup."""
    if ours:
        return f"; the kernel killed {', '.join(names)} of its processes for want of memory"
    path = last.cgroup.path if last is not None and last.cgroup is not None else ""
    beside = [kill for kill in traces.kills if path and kill.cgroup == path]
    if beside:
        named = ", ".join(f"{kill.name} ({kill.pid})" for kill in beside)
        return f"; the kernel killed {named} of its cgroup for want of memory meanwhile"
    if traces.counted > 0:
        return f"; {traces.counted} process(es) of its cgroup were killed for want of memory meanwhile"
    return ""


def _killed(
    code: int | None, last: Sample | None, ours: list[Kill], names: tuple[str, ...], machine_memory: int
) -> Ended:
    cgroup: CgroupSample | None = last.cgroup if last is not None else None
    in_cgroup = ours[-1].by_cgroup if ours else cgroup is not None and cgroup.limit is not None
    limit = ours[-1].limit if ours else None
    if limit is None:
        limit = cgroup.limit if in_cgroup and cgroup is not None else machine_memory or None
    anon = max((kill.anon for kill in ours), default=cgroup.anon if cgroup is not None else None)
    if anon is not None and limit:
        anon = min(anon, limit)  # what it touched before it was moved into the cgroup is charged elsewhere
    who = "the cgroup" if in_cgroup else "the machine"
    reached = f" reached {format_size(limit)}" if limit else " ran out of memory"
    of_it = f", of which anon {format_size(anon)}" if anon is not None else ""
    by = f" in {names[-1]}" if names and of_it else ""
    sentence = f"killed by the kernel: {who}{reached}{of_it}{by}"
    return Ended("oom", code, "SIGKILL", sentence, names, limit, anon, by="cgroup" if in_cgroup else "machine")


def _bus_error(samples: Sequence[Sample]) -> str:
    """Why a page could not be brought in: which tmpfs is full, or which mapped file was cut short."""
    for tmpfs in samples[-1].tmpfs if samples else ():
        # What it gained in the last second or so before would have filled it.
        before = min(
            (each.used for sample in samples[-4:-1] for each in sample.tmpfs if each.path == tmpfs.path), default=0
        )
        if tmpfs.full or 0 < tmpfs.size <= tmpfs.used + max(0, tmpfs.used - before):
            used, size = format_size(tmpfs.used), format_size(tmpfs.size)
            return f" (bus error): {tmpfs.path} is full, {used} of {size} when last seen; {larger(tmpfs.path)}"
    sizes: dict[str, int] = {}
    mapped: set[str] = set()
    for sample in samples:
        for file in sample.files:
            sizes[file.path] = max(file.size, sizes.get(file.path, 0))
            if file.mapped or file.memory:
                mapped.add(file.path)
    for file in samples[-1].files if samples else ():
        if file.path in mapped and file.size < sizes[file.path]:
            was, now = format_size(sizes[file.path]), format_size(file.size)
            return f" (bus error): {file.path} was cut short while it was mapped, from {was} to {now}"
    return " (bus error): neither a full tmpfs nor a file cut short was seen; a disk error leaves its line in dmesg"


def larger(path: str) -> str:
    """How a tmpfs is made larger, in the words of whoever made it."""
    if path == "/dev/shm":
        return (
            "give it more room: docker run --shm-size=8g, or in Kubernetes a volume emptyDir: {medium: Memory, "
            "sizeLimit: 8Gi} mounted at /dev/shm"
        )
    return f"give it more room: mount -o remount,size=8G {path} (docker: --shm-size, Kubernetes: emptyDir sizeLimit)"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
