"""``lowtide`` on the command line, called in this process: what it prints, where, and its exit code.

Most tests of a command are about its words, and a process of its own costs a second of imports for each call.
What needs a real one - signals, pipes, terminals, memory, what is imported - starts it: each command has such a test.
"""

from __future__ import annotations

import contextlib
import io
import json
from subprocess import CompletedProcess
from typing import Any

from lowtide.cli import main


def called(*words: object) -> CompletedProcess[str]:
    """``lowtide`` with these words, as ``subprocess.run`` would give it back."""
    spelled = [str(word) for word in words]
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main(spelled)
        except SystemExit as ended:  # how argparse ends
            code = int(ended.code or 0)
    return CompletedProcess(["lowtide", *spelled], code, out.getvalue(), err.getvalue())


def document_of(command: str, *words: object) -> dict[str, Any]:
    """What a command says with ``--json``."""
    done = called(command, "--json", *words)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def refusal_of(command: str, *words: object, code: int) -> str:
    """The one line on stderr of a call that must fail: 1 for the data, 2 for how it was asked."""
    done = called(command, *words)
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    assert done.stderr.startswith(f"lowtide {command}: ")
    assert done.stderr.count("\n") == 1
    return done.stderr
