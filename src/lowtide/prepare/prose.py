"""English sentences out of what a machine has anyway: manual pages, docstrings, the READMEs of packages.

Each function takes a file's text and gives its paragraphs; `is_prose` says which of them are plain sentences. Headings,
tables, options and code are left out: a small model that learns for minutes writes what it has read most. Nothing is
run or imported, and macros and docstrings are found by their form. Cost: about 10 MB of input per second.
"""

from __future__ import annotations

import inspect
import re

_SHORTEST, _LONGEST = 50, 2000  # characters of a paragraph; longer ones are lists or were not told apart
_LONGEST_WORDS = 8  # characters per space: prose has 6, lists of names more
_SYMBOLS = 0.06  # of the characters: at 0.01 half of the text is left, and an eighth of that is too small a budget
_SYMBOL = re.compile(r"[^A-Za-z0-9 ,.;:'\"()?!-]|--|::| -\w|\w\(\)|[a-z][A-Z]|:\w|\.\.")
_MARKUP = re.compile(r"[`*]+")
_BLANK_LINES = re.compile(r"\n\s*\n")
_QUOTED = re.compile("(\"\"\"|''')(.*?)\\1", re.DOTALL)


def is_prose(paragraph: str) -> bool:
    """Whether a paragraph is made of sentences, and hardly anything else."""
    if not (_SHORTEST <= len(paragraph) <= _LONGEST and paragraph[0].isupper() and paragraph[-1] == "."):
        return False
    wordy = paragraph.count(" ") * _LONGEST_WORDS >= len(paragraph)
    return wordy and len(_SYMBOL.findall(paragraph)) <= _SYMBOLS * len(paragraph)


def of_module(text: str) -> list[str]:
    """A Python module's docstrings, and its other long strings."""
    return [one for found in _QUOTED.finditer(text) for one in of_page(inspect.cleandoc(found[2]))]


def of_metadata(text: str) -> list[str]:
    """The README in a package's METADATA, which stands after its headers."""
    return of_page(text.partition("\n\n")[2])


def of_page(text: str) -> list[str]:
    """A README or another page of documentation, without the marks of its headings and names."""
    return [" ".join(_MARKUP.sub("", one).split()) for one in _BLANK_LINES.split(text)]


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


def of_manual(text: str) -> list[str]:
    """A manual page (man macros) without its macros."""
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
            return []
        elif name in ("nf", "EX"):
            end()
            filled = name
        elif name in ("fi", "EE"):
            end()
            filled = ""
        elif name in ("SH", "SS"):
            end()
            paragraphs.append(_plain(" ".join(_arguments(rest))))
        elif name in _SPACED or name in _ALTERNATING:
            words.append(_plain((" " if name in _SPACED else "").join(_arguments(rest))))
        elif name == "IP":
            end()
            words += [_plain(label) for label in _arguments(rest)[:1] if label]
        elif name in _PARAGRAPHS:
            end()
    end()
    return paragraphs


def _arguments(rest: str) -> list[str]:
    return [quoted.replace('""', '"') or bare for quoted, bare in _ARGUMENT.findall(rest)]


def _plain(text: str) -> str:
    return _ESCAPE.sub(_character, text) if "\\" in text else text


def _character(found: re.Match[str]) -> str:
    escape = f"({found[2]}" if found[2] is not None else found[1]
    return _ESCAPES.get(escape, "")
