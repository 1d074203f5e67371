"""Killed before any change it makes to the disk, the same command goes on: the same files, and nothing else."""

from __future__ import annotations

import os
import random
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.prepare.conftest import make_documents, snapshot, write_jsonl

from lowtide.corpus.journal import WORK
from lowtide.corpus.request import FORMATS
from lowtide.prepare import Request, Resources, prepare

CHANGES = ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate")


def killed_at(number: int, source: Path, output: Path, request: Request) -> int:
    """Prepare in a forked child that is killed before its ``number``-th change below ``output``; changes it made."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        seen = 0

        def count(event: str, words: tuple[Any, ...]) -> None:
            nonlocal seen
            below = event in CHANGES and str(output) in str(words[0]) + str(words[1:2])
            if below or (event in ("os.remove", "os.rmdir") and words[1] != -1):  # rmtree names files by a descriptor
                seen += 1
                if seen > number:
                    os.kill(os.getpid(), signal.SIGKILL)
                os.write(writing, b".")

        sys.addaudithook(count)
        try:
            prepare([str(source)], output, request, Resources(workers=1))
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as signs:
        made = len(signs.read())
    os.waitpid(child, 0)
    return made


def check(number: int, source: Path, output: Path, request: Request, whole: dict[str, bytes]) -> int:
    """One kill, one more try; how many changes there were before the kill."""
    made = killed_at(number, source, output, request)
    finished = request.format != "lowtide" and output.exists() and not (output / WORK).exists()
    if not finished or not any(output.iterdir()):  # its directory alone is no run
        prepare([str(source)], output, request, Resources(workers=1))
    assert snapshot(output) == whole, f"killed before change {number}"
    assert not (output / WORK).exists()
    return made


@pytest.mark.parametrize("format", FORMATS)
def test_killed_at_changes_all_over_a_run_it_goes_on(tmp_path: Path, format: str) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", make_documents(30, longest=60))
    request = Request(format=format, val=0.3, dedup=True, shard_tokens=3000)
    prepare([str(source)], tmp_path / "whole", request, Resources(workers=1))
    whole = snapshot(tmp_path / "whole")
    changes = killed_at(10**9, source, tmp_path / "counted", request)
    assert changes > 25
    chosen = [*random.Random(0).sample(range(changes - 24), 5), *range(changes - 24, changes, 3)]
    for number in chosen:
        made = check(number, source, tmp_path / f"{number}", request, whole)
        assert made == number, "it was killed where it was meant to be"
