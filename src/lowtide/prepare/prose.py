"""Text worth reading out of what a machine has anyway: manual pages, what pydoc prints, the READMEs of packages.

Each function takes a file's text and gives plain paragraphs, or nothing where there is little to read. Nothing is run
or imported: a manual page's macros and a module's docstrings are found by their form, a few of them wrongly, which a
model that learns from them can bear. Cost: about 10 MB of input per second.
"""

from __future__ import annotations

import inspect
import re
import string

_READABLE = string.ascii_letters + " \n,."
_LEAST_READABLE = 0.85  # prose has 0.95 of its characters in `_READABLE`, code 0.75, tables less
_SHORTEST = 200  # characters of a document
_LONGEST_HEAD = 1500  # characters of a `def` with all its arguments

_QUOTES = re.compile("\"\"\"|'''")
_HEAD = re.compile(r"(?:def|class) [^\n]*", re.DOTALL)


def reads_well(text: str) -> bool:
    """Whether most of it is words."""
    return sum(map(text.count, _READABLE)) >= _LEAST_READABLE * len(text)


def of_module(text: str, name: str) -> str:
    """What pydoc would print of a module: its docstring, then each class and function that has one."""
    found = [f"Help on module {name}:"]
    place = 0
    while opens := _QUOTES.search(text, place):
        closes = text.find(opens[0], opens.end())
        if closes < 0:
            break
        head = _head(text[max(place, opens.start() - _LONGEST_HEAD) : opens.start()], first=len(found) == 1)
        docstring = inspect.cleandoc(text[opens.end() : closes]) if head is not None else ""
        if docstring and reads_well(docstring):
            found.append(f"{head}\n{docstring}" if head else docstring)
        place = closes + 3
    return _worth("\n\n".join(found)) if len(found) > 1 else ""


def _head(before: str, *, first: bool) -> str | None:
    """The line that a docstring after ``before`` documents, '' for a module; None where it is some other string."""
    before = before.rstrip().removesuffix("r").rstrip()
    if before.endswith(":"):
        begins = max(before.rfind("def "), before.rfind("class "))
        return " ".join(before[begins:-1].split()) if begins >= 0 else None
    is_comment = all(line.startswith("#") for line in before.splitlines() if line.strip())
    return "" if first and is_comment else None


def of_metadata(text: str) -> str:
    """The README in a package's METADATA, which stands after its headers."""
    return of_page(text.partition("\n\n")[2])


def of_page(text: str) -> str:
    """A README or another page of documentation, as it is."""
    return _worth(text.strip()) if reads_well(text) else ""


def _worth(text: str) -> str:
    return text if len(text) >= _SHORTEST else ""


# Manual pages

_MACRO = re.compile(r"[.'][ \t]*([A-Za-z]*)[ \t]*(.*)")
_SPACED, _ALTERNATING = frozenset({"B", "I", "SM", "SB"}), frozenset({"BR", "BI", "IB", "IR", "RB", "RI"})
_PARAGRAPHS = frozenset({"PP", "P", "LP", "sp", "TP", "RS", "RE", "HP", "br", "TQ"})
_ARGUMENT = re.compile(r'"((?:[^"]|"")*)"?|(\S+)')
_ESCAPES = {
    "-": "-", "e": "\\", "&": "", "|": "", "^": "", "~": " ", " ": " ", "0": " ", "c": "", "/": "", ",": "", ":": "",
    "(aq": "'", "(dq": '"', "(em": " - ", "(en": "-", "(bu": "*", "(lq": '"', "(rq": '"', "(oq": "'", "(cq": "'",
    "(rs": "\\", "(ti": "~", "(ha": "^", "(ga": "`", "(mi": "-", "(co": "(C)", "*(Aq": "'", "*(L": '"', "*(R": '"',
    "*(--": "--", "(hy": "-",
}  # fmt: skip
_ESCAPE = re.compile(r"\\(f\(..|f\[[^\]]*\]|f.|s[-+]?\d+|m\[[^\]]*\]|[hvwz]'[^']*'|\[([^\]]*)\]|[*(](..)|\*?.)")


def of_manual(text: str) -> str:
    """A manual page (man macros) without its macros; each paragraph becomes one line, as a pager would fill it."""
    paragraphs: list[str] = []
    words: list[str] = []
    skipped = filled = ""

    def end() -> None:
        if words:
            paragraphs.append(" ".join(words))
            words.clear()

    for line in text.splitlines():
        if skipped:
            skipped = "" if line.startswith(skipped) else skipped
            continue
        macro = _MACRO.match(line) if line[:1] in (".", "'") else None
        if macro is None:
            if filled or line.startswith(" ") or not line.strip():
                end()
            if line.strip():
                words.append(_plain(line) if filled or line.startswith(" ") else _plain(line.strip()))
            if filled:
                end()
            continue
        name, rest = macro[1], macro[2]
        if name in ("de", "ig"):
            skipped = ".."
        elif name == "TS":
            skipped = ".TE"
        elif name == "so":
            return ""
        elif name in ("nf", "EX"):
            end()
            filled = name
        elif name in ("fi", "EE"):
            end()
            filled = ""
        elif name in ("SH", "SS"):
            end()
            paragraphs.append("\n" + _plain(" ".join(_arguments(rest))))
        elif name in _SPACED or name in _ALTERNATING:
            words.append(_plain((" " if name in _SPACED else "").join(_arguments(rest))))
        elif name == "IP":
            end()
            words += [_plain(label) for label in _arguments(rest)[:1] if label]
        elif name in _PARAGRAPHS:
            end()
    end()
    page = "\n".join(paragraphs).strip()
    return _worth(page) if reads_well(page) else ""


def _arguments(rest: str) -> list[str]:
    return [quoted.replace('""', '"') or bare for quoted, bare in _ARGUMENT.findall(rest)]


def _plain(text: str) -> str:
    return _ESCAPE.sub(_character, text) if "\\" in text else text


def _character(found: re.Match[str]) -> str:
    escape = f"({found[2]}" if found[2] is not None else found[1]
    return _ESCAPES.get(escape, "")
