"""The work directory of a corpus in the making: its lock, what was planned, and how far it got.

Everything needed to continue is in ``.lowtide-prepare`` inside the output, which is removed when the output is
complete. The lock is the kernel's and ends with the process, so a killed run blocks nobody. The plan is compared word
for word: a run continues only with the inputs and settings it began with, and otherwise says what differs.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from lowtide.corpus.request import Request
from lowtide.errors import StateError
from lowtide.storage.own_files import OwnDirectory, atomic_write, locked

WORK = ".lowtide-prepare"
PlannedFile = tuple[str, int, int]  # path, bytes, nanoseconds of its last change


class Journal:
    """The work directory ``WORK`` inside ``output``, held by this process alone."""

    def __init__(self, output: Path) -> None:
        self.output = output
        self.path = output / WORK

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Hold the lock; StateError if another process has it."""
        directory = OwnDirectory(self.path)
        with directory.open("lock", os.O_RDWR | os.O_CREAT) as lock:
            if not locked(lock):
                holder = os.pread(lock.number, 40, 0).decode(errors="replace").strip()
                raise StateError(
                    f"{self.output}: expected a directory that no other run writes to, got one that process "
                    f"{holder or 'unknown'} is writing. Wait for it, or name another with -o."
                )
            lock.truncate(0)
            os.pwrite(lock.number, str(os.getpid()).encode(), 0)
            yield

    def read(self, name: str) -> dict[str, Any] | None:
        """A file of the work directory; ``None`` if there is none."""
        try:
            content = json.loads((self.path / name).read_bytes())
        except FileNotFoundError:
            return None
        except ValueError:
            raise StateError(
                f"{self.path / name}: expected the JSON of an earlier run, got something else. Remove {self.output} "
                "and start again."
            ) from None
        return content if isinstance(content, dict) else None

    def write(self, name: str, content: dict[str, Any]) -> None:
        with atomic_write(self.path / name) as file:
            file.write(json.dumps(content).encode())

    def agree(self, request: Request, inputs: Sequence[PlannedFile], **others: object) -> None:
        """Write the plan, or refuse to continue if the existing one differs."""
        plan = {"settings": vars(request), "inputs": [list(one) for one in inputs], **others}
        before = self.read("plan.json")
        if before is None or (before != json.loads(json.dumps(plan)) and self.read("journal.json") is None):
            self._begin_anew()  # nothing was finished, so nothing is lost: somebody corrects a mistake
            self.write("plan.json", plan)
            return
        for was, one in zip(before["inputs"], inputs, strict=False):
            if was != list(one):
                what = "another file in its place" if was[0] != one[0] else f"{one[1]} bytes or a later change"
                raise StateError(
                    f"{was[0]}: expected the {was[1]} bytes this run began with, got {what}. "
                    "Start again in an empty directory."
                )
        advice = "Run it as before, or start again in an empty directory"
        if len(before["inputs"]) != len(inputs):
            raise StateError(
                f"{self.output}: expected the {len(before['inputs'])} input files this run began with, got "
                f"{len(inputs)}. {advice}."
            )
        flags = {
            f"--{name.replace('_', '-')}": (before["settings"].get(name), now) for name, now in vars(request).items()
        }
        for name, (was, now) in (flags | {name: (before.get(name), now) for name, now in others.items()}).items():
            if was != now:
                raise StateError(
                    f"{self.output}: expected {name} {was!r} as this run began with, got {now!r}. {advice}."
                )

    def _begin_anew(self) -> None:
        for entry in self.path.iterdir():
            if entry.name not in ("lock", "stdin") and entry.is_file():
                entry.unlink()

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)


def refuse_other_files(output: Path) -> None:
    """StateError for a directory that holds anything but an unfinished run of ours."""
    if not output.exists() or (output / WORK).is_dir():
        return
    if not output.is_dir():
        raise StateError(f"{output}: expected a directory, got a file. Name another with -o.")
    names = sorted(entry.name for entry in output.iterdir())
    if names:
        raise StateError(
            f"{output}: expected an empty directory or an unfinished run of the same command, got "
            f"{', '.join(names[:3])}{' ...' if len(names) > 3 else ''}. Name another with -o."
        )
