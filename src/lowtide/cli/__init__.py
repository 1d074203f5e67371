"""The command line: one file a command, each with ``add(parser)`` and ``run(arguments)``; this file only dispatches.

A command prints for a person, or with ``--json`` exactly one JSON document. Errors are one line on stderr:
exit 0 fine, 1 the data or the run failed, 2 wrong usage. A command's module is imported when it is used, so that
``lowtide info`` never pays for torch.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

from lowtide.errors import LowtideError

COMMANDS = {
    "info": "what a file is and how it would be read",
    "plan": "what a run will hold, read and take, before it starts",
    "bench": "measure every way to read a file, on this machine and disk",
    "doctor": "run a command or watch a process, and say which kind of memory grew",
    "prepare": "make a token corpus from text",
    "verify": "read data once and name every fault",
    "convert": "write tokens in another format",
    "train": "train a small GPT on tokens from disk",
}


def main(arguments: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if arguments is None else arguments)
    parser = argparse.ArgumentParser(
        prog="lowtide", description="Read arrays and tokens far bigger than RAM inside a budget, and prove it."
    )
    parser.add_argument("--version", action="store_true", help="print the version and end")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    for name, text in COMMANDS.items():
        command = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
        if name in words[:1]:  # only the command in use pays for its imports
            _module(name).add(command)
    parsed = parser.parse_args(words)
    if parsed.version:
        from importlib.metadata import version

        print(f"lowtide {version('lowtide')}")
        return 0
    if parsed.command is None:
        parser.print_help()
        return 2
    try:
        return int(_module(parsed.command).run(parsed) or 0)
    except BrokenPipeError:
        return 0
    except (LowtideError, OSError, ValueError, TypeError) as problem:
        print(f"lowtide {parsed.command}: {_one_line(problem)}", file=sys.stderr)
        # Wrong arguments stay TypeError and ValueError in the library: usage. Errors of our own are about the data.
        return 2 if isinstance(problem, (TypeError, ValueError)) and not isinstance(problem, LowtideError) else 1


def _module(name: str):  # type: ignore[no-untyped-def]  # a module with add() and run()
    return importlib.import_module(f"lowtide.cli.{name}")


def _one_line(problem: BaseException) -> str:
    if isinstance(problem, FileNotFoundError) and problem.filename is not None:
        return f"{problem.filename}: no such file."
    return " ".join(str(problem).split())
