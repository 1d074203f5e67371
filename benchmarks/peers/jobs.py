"""Runs one job of one peer in a fresh process: with a time limit, its memory watched; the answer, or how it ended."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.peers.environments import ROOT, python_of, variables
from benchmarks.peers.loader import Peer
from benchmarks.peers.watch import Watch, forget_peak, kinds, peak_resident


class JobError(Exception):
    """A job without an answer; ``how`` in a word or two."""

    def __init__(self, how: str, heard: str) -> None:
        super().__init__(f"{how}: {heard}")
        self.how, self.heard = how, heard


def run(
    peer: type[Peer], job: str, place: Path, *, limit: float, between: Callable[[], None] | None = None, **more: Any
) -> Any:
    """The answer, with the memory it added to what its imports had. ``between`` runs when the imports are done."""
    words = json.dumps({"peer": peer.__name__, "job": job, "place": str(place), **more})
    with tempfile.TemporaryFile("w+") as errors:
        child = subprocess.Popen(
            [python_of(peer), "-m", "benchmarks.peers.child", words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            cwd=ROOT,
            env=variables(),
            start_new_session=True,
        )
        try:
            return _talk(child, limit, between)
        except JobError as failed:
            errors.seek(0)
            lines = [line.strip() for line in errors.read().splitlines() if line.strip()]
            raise JobError(failed.how, lines[-1][:300] if lines else "") from None
        finally:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()


def _talk(child: subprocess.Popen[str], limit: float, between: Callable[[], None] | None) -> dict[str, Any]:
    assert child.stdin is not None and child.stdout is not None
    lines: queue.Queue[str] = queue.Queue()

    def listen() -> None:
        assert child.stdout is not None
        for line in child.stdout:
            lines.put(line)
        lines.put("")

    threading.Thread(target=listen, daemon=True).start()
    _line(child, lines, 120)
    if between:
        between()
    before, watch, resident = kinds(child.pid), Watch(child.pid), forget_peak(child.pid)
    watch.start()
    try:
        child.stdin.write("go\n")
        child.stdin.flush()
        answer = json.loads(_line(child, lines, limit))
        watch.look()
    finally:
        most = watch.stop()
    answer["anon"] = max(0, most.anon - before.anon)
    answer["mapped"] = max(0, most.mapped - before.mapped)
    answer["resident"] = max(0, peak_resident(child.pid) - resident)
    return dict(answer)


def _line(child: subprocess.Popen[str], lines: queue.Queue[str], limit: float) -> str:
    try:
        line = lines.get(timeout=limit)
    except queue.Empty:
        raise JobError(f"no answer in {limit:.0f} s", "") from None
    if line:
        return line
    code = child.wait(10)
    raise JobError(signal.Signals(-code).name if code < 0 else "failed", "")
