"""The command line: one file per command, each with ``add(parser)`` and ``run(arguments)``; this file dispatches.

A command prints for a person, or with ``--json`` exactly one JSON document. Errors are one line on stderr: exit 0 fine,
1 the data or the run failed, 2 wrong usage, 130 stopped by Ctrl-C. A command's module is imported when it is used, so
that ``lowtide info`` never pays for torch.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import NoReturn

from lowtide.errors import LowtideError

COMMANDS = {
    "info": "say what a file is and how it would be read",
    "plan": "say what a run will hold, read and take, before it starts",
    "bench": "measure every way to read a file, on this machine and disk",
    "doctor": "run or watch a program, and say which kind of memory grew",
    "prepare": "make a token corpus from text",
    "verify": "read data once and name every fault",
    "convert": "write tokens in another format",
    "train": "train a small GPT on tokens from disk",
    "peek": "show what a step is or was trained on: files, bytes, documents, ids and text",
    "sample": "let a trained model write text",
}
STOPPED = 130  # what shells give for a program that Ctrl-C ended


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line; the whole usage is one ``--help`` away."""

    def error(self, message: str) -> NoReturn:
        self.exit(
            2, f"{self.prog}: {message.removeprefix('argument ')}. Run '{self.prog} --help' to see what it takes.\n"
        )


def main(arguments: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if arguments is None else arguments)
    name = f"lowtide {words[0]}" if words and words[0] in COMMANDS else "lowtide"
    try:
        code = _run(words)
        sys.stdout.flush()  # here, where a reader that has gone is no error
        return code
    except KeyboardInterrupt:
        print(f"{name}: stopped by Ctrl-C.", file=sys.stderr)
        return STOPPED
    except BrokenPipeError:
        # Whoever read us has seen enough. Python would complain when it flushes stdout at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (LowtideError, OSError, ValueError, TypeError) as problem:
        print(f"{name}: {_one_line(problem)}", file=sys.stderr)
        # Wrong arguments stay TypeError and ValueError in the library: usage. Errors of our own are about the data.
        return 2 if isinstance(problem, (TypeError, ValueError)) and not isinstance(problem, LowtideError) else 1


def _run(words: Sequence[str]) -> int:
    parser = _Parser(
        prog="lowtide",
        description="Read arrays and token corpora far bigger than RAM inside a memory budget, and prove it.",
        epilog="Run 'lowtide COMMAND --help' to see what a command takes.",
    )
    parser.add_argument("--version", action="store_true", help="print the version")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands", parser_class=_Parser)
    for name, text in COMMANDS.items():
        command = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
        if name in words[:1]:  # only the command in use pays for its imports
            _module(name).add(command)
    parsed, unknown = parser.parse_known_args(words)
    if unknown:  # the command's own parser says so: its help is the one that helps
        commands.choices.get(parsed.command, parser).error(f"unrecognized arguments: {' '.join(unknown)}")
    if parsed.version:
        from importlib.metadata import version

        print(f"lowtide {version('lowtide')}")
        return 0
    if parsed.command is None:
        parser.print_help()
        return 2
    return int(_module(parsed.command).run(parsed) or 0)


def _module(name: str):  # type: ignore[no-untyped-def]  # a module with add() and run()
    with no_interrupt_lost():
        return importlib.import_module(f"lowtide.cli.{name}")


@contextlib.contextmanager
def no_interrupt_lost() -> Iterator[None]:
    """A Ctrl-C that was swallowed inside (in a finalizer, or by a package that catches everything while imported)
    is raised behind it."""
    ours = threading.current_thread() is threading.main_thread()
    if not ours or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    heard = []

    def note(number: int, frame: FrameType | None) -> None:
        heard.append(number)
        signal.default_int_handler(number, frame)

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if heard:
        raise KeyboardInterrupt


def _one_line(problem: BaseException) -> str:
    if isinstance(problem, FileNotFoundError) and problem.filename is not None:
        return f"{problem.filename}: no such file."
    return " ".join(str(problem).split())
