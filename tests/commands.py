"""``lowtide`` on the command line, called in this process: what it prints, where, and its exit code.

Most tests of a command are about its words, and a process of its own costs a second of imports for each call.
What needs a real one - signals, pipes, terminals, memory, what is imported - starts it: each command has such a test.
"""

from __future__ import annotations

import contextlib
import io
from subprocess import CompletedProcess

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
