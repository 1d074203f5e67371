"""Damaged headers of every format: a typed error, or something that can be read to its end; nothing huge, no warning.

The sound files are those of the formats' tests, byte for byte as their writers make them. A damaged one is opened as an
array and as tokens, with and without a stated dtype, and what opens is read whole. The address space is limited while
that happens: a header that asks for memory is found out. Warnings are errors.
"""

from __future__ import annotations

import random
import resource
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from tests.formats.conftest import TokenFiles
from tests.formats.test_header_fuzz import KINDS, damaged, sound_files
from tests.torture.tally import Tally

import lowtide

ROOM = 768 << 20  # of address space above what the interpreter has when it begins
MOST_READ = 1 << 20
FINE = (lowtide.LowtideError, OSError)


def ways(kind: str, path: Path) -> dict[str, Callable[[], Any]]:
    source = path.parent if kind == "manifest" else path.with_name("d.ds") if kind == "datatrove" else path
    tensor = "w" if kind == "safetensors" else None
    found: dict[str, Callable[[], Any]] = {
        "open_tokens": lambda: lowtide.open_tokens(source),
        "open_tokens as uint16": lambda: lowtide.open_tokens(source, dtype="uint16"),
    }
    if kind not in ("manifest", "datatrove"):
        found["open"] = lambda: lowtide.open(source, tensor=tensor)
        found["open as uint16"] = lambda: lowtide.open(source, dtype="uint16", tensor=tensor)
    return found


def program(rng: random.Random, directory: Path, tally: Tally, rounds: int) -> None:
    warnings.simplefilter("error")
    kind = rng.choice(KINDS)
    path, reach = sound_files(TokenFiles(directory))[kind]
    sound = path.read_bytes()
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + ROOM, resource.RLIM_INFINITY))
    for _ in range(rounds):
        content = damaged(rng, sound, reach)
        path.write_bytes(content)
        tally.tried += 1
        tally.fired += 1
        for name, opened in ways(kind, path).items():
            try:
                with opened() as something:
                    read_to_its_end(something)
            except FINE:
                continue
            except ValueError as problem:
                if "expected" in str(problem):  # wrong arguments stay ValueError, in the words of every error
                    continue
                report(kind, name, content, tally)
            except BaseException:
                report(kind, name, content, tally)
        tally.tell_now_and_then()


def read_to_its_end(something: Any) -> None:
    """Lengths, first and last, everything when it is small."""
    count = len(something)
    if not count:
        return
    last = something[count - 1]
    assert np.asarray(last).shape == np.asarray(something[0]).shape
    if isinstance(something, lowtide.Tokens):
        assert len(something[:1000]) == min(count, 1000)
        for number, _ in enumerate(something.documents() or ()):
            if number > 1000:
                break
    elif something.nbytes <= MOST_READ:
        assert sum(len(chunk) for chunk in something.chunks(7)) == count


def report(kind: str, name: str, content: bytes, tally: Tally) -> None:
    trace = traceback.format_exc().strip().splitlines()
    place = next((line.strip() for line in reversed(trace) if "/lowtide/" in line), "")
    tally.found("untyped error", f"{kind}, {name}: {trace[-1]} at {place}; first bytes {content[:160]!r}")
