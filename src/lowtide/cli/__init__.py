"""The command line: one file per command, each with ``add(parser)`` and ``run(arguments)``; this file dispatches.

A command prints for a person, or with ``--json`` exactly one JSON document. Errors are one line on stderr: exit 0 fine,
1 the data or the run failed, 2 wrong usage, 130 stopped by Ctrl-C. A command's module is imported when it is used, so
that ``lowtide info`` never pays for torch.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import importlib
import io
import os
import re
import shutil
import signal
import sys
import textwrap
import threading
from collections.abc import Iterator, Sequence
from functools import partial
from types import FrameType
from typing import IO, Any, NoReturn, TypeGuard

from lowtide.errors import LowtideError

GROUPS = {
    "look at data": {
        "info": "say what a file is and how it would be read",
        "plan": "say what a run will hold and read, before it starts",
        "bench": "measure every way to read a file, on this machine and disk",
        "peek": "show what a step is or was trained on: files, bytes, documents, ids and text",
    },
    "make and check a corpus": {
        "prepare": "make a token corpus from text",
        "verify": "read data once and report every fault",
        "convert": "write tokens in another format",
    },
    "train": {
        "train": "train a small GPT on tokens from disk",
        "sample": "let a trained model write text",
    },
    "find out about memory": {
        "doctor": "run or watch a program, and say which kind of memory grew",
    },
}
COMMANDS = {name: text for commands in GROUPS.values() for name, text in commands.items()}
SUPPRESS = argparse.SUPPRESS  # as the help of a second spelling
MAY_BE_EMPTY = ("command", "words", "prompt")  # which parser reads the rest; a command to watch; text to go on from
STOPPED = 130  # what shells give for a program that Ctrl-C ended
WORKS = ("prepare", "verify", "convert", "train")  # whose exit code tells more than that all was printed


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, with the nearest right word; the whole usage is one ``--help`` away."""

    def format_help(self) -> str:
        return _narrowed(super().format_help())

    def _print_message(self, message: str, file: Any = None) -> None:
        """argparse would say nothing of help that could not be printed."""
        if file is not sys.stdout:
            super()._print_message(message, file)
        elif message:
            file.write(message)
            file.flush()

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> Any:
        # Most often a variable of the shell that is not set. Taken as a path it would be the current directory, as an
        # option left out: `lowtide train --data "$DATA"` would learn from other text, without a word.
        if "" in arg_strings and action.dest not in MAY_BE_EMPTY:
            raise argparse.ArgumentError(action, "expected a value, got empty text; is a shell variable unset?")
        return super()._get_values(action, arg_strings)

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {self._reworded(message)} Run '{self.prog} --help' to see what it takes.\n")

    def _get_option_tuples(self, option_string: str) -> list[Any]:
        """What an abbreviation may stand for: two spellings of one option are not ambiguous."""
        found = {one[0].dest: one for one in reversed(super()._get_option_tuples(option_string))}
        return list(reversed(found.values()))

    def _reworded(self, message: str) -> str:
        """argparse's messages, worded like ours."""
        message = message.removeprefix("argument ")
        if choice := re.fullmatch(r"(.+): invalid choice: '(.*)' \(choose from (.*)\)", message, re.DOTALL):
            name, got, known = choice[1], choice[2], [word.strip("' ") for word in choice[3].split(",")]
            where, what = ("", "a command") if name == "COMMAND" else (f"{name}: ", f"one of {', '.join(known)}")
            return f"{where}expected {what}, got {got!r}.{_nearest(got, known)}"
        if required := re.fullmatch(r"the following arguments are required: (.*)", message):
            return f"expected {required[1]}, got none."
        if alone := re.fullmatch(r"(.+): expected (?:one|at least one) argument", message):
            return f"{alone[1]}: expected a value after it, got none."
        if unknown := re.fullmatch(r"unrecognized arguments: (\S+).*", message, re.DOTALL):
            if unknown[1].startswith("-"):
                known = [each for action in self._actions for each in action.option_strings if action.help != SUPPRESS]
                near = _nearest(unknown[1].partition("=")[0], known)
                return f"{unknown[1]}: expected an option of '{self.prog}', got another.{near}"
            more = f" Name a corpus with --data {unknown[1]}." if "--data" in self._option_string_actions else ""
            return f"expected only options after '{self.prog}' here, got {unknown[1]!r}.{more}"
        if several := re.fullmatch(r"ambiguous option: (\S+) could match (.*)", message, re.DOTALL):
            shown = [one for one in several[2].split(", ") if self._option_string_actions[one].help != SUPPRESS]
            return f"{several[1]}: expected the name of one option, got the beginning of {' and '.join(shown)}."
        return message if message.endswith("?") else f"{message}."


class _Wrapper(textwrap.TextWrapper):
    """Breaks lines at spaces, and behind the commas of a list."""

    wordsep_simple_re = re.compile(r"(\s+|(?<=,)(?=\S))")


def _narrowed(text: str) -> str:
    """Help in no more columns than there are: argparse breaks neither titles nor ``[--name {one,of,these}]``."""
    columns = max(20, shutil.get_terminal_size().columns)
    usage, blank, rest = text.partition("\n\n")
    if max(map(len, usage.splitlines())) > columns:
        usage = re.sub(r"(?m)^ +", "  ", usage)
    lines: list[str] = []
    for line in f"{usage}{blank}{rest}".splitlines():
        bare = line.lstrip()
        indent = len(line) - len(bare)
        column = re.match(r"\S+ {2,}", bare)  # a name and what it is
        more = indent + (column.end() if column else 2 if indent or bare.startswith("usage:") else 0)
        wrapper = _Wrapper(columns, " " * indent, " " * more, break_long_words=False, break_on_hyphens=False)
        lines += [line] if len(line) <= columns else wrapper.wrap(bare)
    return "\n".join(lines) + "\n"


def _nearest(got: str, known: Sequence[str]) -> str:
    bare = {word.strip("-"): word for word in known}
    near = difflib.get_close_matches(got.strip("-"), bare, n=1)
    return f" Did you mean {bare[near[0]]}?" if near else ""


def main(arguments: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] == ["help"]:
        words = [*words[1:2], "--help"]
    name = f"lowtide {words[0]}" if words and words[0] in COMMANDS else "lowtide"
    code = None
    try:
        _mend_streams()
        code = _run(words)
        sys.stdout.flush()  # here, where a reader that has gone is no error
        return code
    except KeyboardInterrupt:
        print(f"{name}: stopped by Ctrl-C.", file=sys.stderr)
        return STOPPED
    except BrokenPipeError:
        _drop_output(sys.stdout)  # whoever read us has seen enough
        if code is None and words and words[0] in WORKS:
            got = "expected a reader of the output until the end, got one that has gone. Send the output to a file."
            with contextlib.suppress(OSError):  # it may be stderr that nobody reads
                print(f"{name}: {got}", file=sys.stderr)
            return 1
        return code or 0
    except ModuleNotFoundError as problem:
        if problem.name != "torch":
            raise
        print(f"{name}: expected torch, got none. Install it with: pip install 'lowtide[torch]'", file=sys.stderr)
        return 1
    except (LowtideError, OSError, ValueError, TypeError) as problem:
        if _of_output(problem):
            _drop_output(sys.stdout)
            got = f"standard output: expected to take what is printed, got: {problem.strerror}"
            print(f"{name}: {got}. Make room there, or send it to another place.", file=sys.stderr)
            return code or 1
        print(f"{name}: {_in_flags(_one_line(problem), words)}", file=sys.stderr)
        # Wrong arguments stay TypeError and ValueError in the library: usage. Errors of our own are about the data.
        return 2 if isinstance(problem, (TypeError, ValueError)) and not isinstance(problem, LowtideError) else 1
    finally:
        try:
            sys.stderr.flush()
        except OSError:  # a log on a full disk: Python would end with a code of its own
            _drop_output(sys.stderr)


def _mend_streams() -> None:
    """A closed stdout (``>&-``, some daemons) drops what is printed; one of an older encoding shows what it has no sign
    for by its number, instead of an error."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123, SIM115 - until the process ends
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _of_output(problem: Exception) -> TypeGuard[OSError]:
    """Whether it is what was printed that failed: an error that names no file, from a line of a command."""
    if not isinstance(problem, OSError) or isinstance(problem, LowtideError) or problem.errno is None:
        return False
    trace = problem.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    last = "" if trace is None else trace.tb_frame.f_globals.get("__name__", "")
    return problem.filename is None and last.partition(".cli")[0] == "lowtide"


def _drop_output(stream: IO[str]) -> None:
    """What is still to be printed goes nowhere: Python would complain when it flushes at the end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _parsers(words: Sequence[str]) -> tuple[_Parser, dict[str, _Parser]]:
    """The parser of the command line, and those of the commands; only the one in use pays for its imports."""
    parser = _Parser(
        prog="lowtide",
        usage="lowtide COMMAND ...",
        description="Read arrays and token corpora far bigger than RAM inside a memory budget, and prove it.",
        epilog=f"{_grouped()}\n\nRun 'lowtide COMMAND --help' to see what a command takes.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="store_true", help="print the version")
    commands = parser.add_subparsers(
        dest="command", metavar="COMMAND", prog="lowtide", help=SUPPRESS, parser_class=_Parser
    )
    for name, text in COMMANDS.items():
        command = commands.add_parser(name, description=text[0].upper() + text[1:] + ".")
        if name in words[:1]:
            _module(name).add(command)
    return parser, dict(commands.choices)


def _grouped() -> str:
    """The commands by what they are for, as ``--help`` shows them."""
    lines = [[f"{group}:", *(f"  {name:<9}{text}" for name, text in each.items())] for group, each in GROUPS.items()]
    return "\n\n".join("\n".join(group) for group in lines)


def _run(words: Sequence[str]) -> int:
    parser, commands = _parsers(words)
    parsed, unknown = parser.parse_known_args(words)
    if unknown:  # the command's own parser says so: its help is the one that helps
        commands.get(parsed.command, parser).error(f"unrecognized arguments: {' '.join(unknown)}")
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
    """Raise after it a Ctrl-C that was swallowed inside: in a finalizer, or by a package that catches everything."""
    ours = threading.current_thread() is threading.main_thread()
    if not ours or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    heard = []

    def note(number: int, frame: FrameType | None) -> None:
        heard.append(number)
        signal.default_int_handler(number, frame)

    def told(unraisable: sys.UnraisableHookArgs) -> None:
        if unraisable.exc_type is not KeyboardInterrupt:  # that one is raised below, and not printed with a traceback
            before(unraisable)

    before, sys.unraisablehook = sys.unraisablehook, told
    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.unraisablehook = before
    if heard:
        raise KeyboardInterrupt


def _in_flags(text: str, words: Sequence[str]) -> str:
    """What the library calls ``dtype='uint16'`` is ``--dtype uint16`` here."""
    if not words or words[0] not in COMMANDS:
        return text
    options = _parsers(words)[1][words[0]]._option_string_actions
    names = {name.removeprefix("--"): name for name in options if options[name].help != SUPPRESS}
    names |= {name.replace("-", "_"): option for name, option in names.items()}
    names |= getattr(_module(words[0]), "CALLED_HERE", {})
    if "part" not in names:  # a part has a path of its own, which these commands take
        text = re.sub(r"State part='(\w+)'", r"Name \1 itself", text)
    for bare, name in names.items():
        value = r"(?:'([^']*)'|\(([^)]*)\)|(-?[\d.]*\d)|(None)|([a-z]\w*))?"
        text = re.sub(rf"^{bare}: expected", f"{name}: expected", text)
        text = re.sub(rf"(?<![\w/.-]){bare}={value}", partial(_spelled, name), text)
    return text


def _spelled(name: str, found: re.Match[str]) -> str:
    if found[4]:
        return f"no {name}"
    value = next((group for group in found.groups() if group is not None), "").replace(", ", ",").rstrip(",")
    return f"{name}{'=' if value.startswith('-') else ' '}{value}".rstrip()


def _one_line(problem: BaseException) -> str:
    if isinstance(problem, FileNotFoundError) and problem.filename is not None:
        return f"{problem.filename}: expected a file, got nothing of that name. Check the path."
    if isinstance(problem, OSError) and isinstance(problem.filename, str) and not isinstance(problem, LowtideError):
        return f"{problem.filename}: expected a path that can be used so, got: {problem.strerror}. Check it with ls -l."
    return " ".join(str(problem).split())
