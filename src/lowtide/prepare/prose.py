"""English sentences out of what a machine has anyway: manual pages, docstrings, the READMEs of packages.

Each function takes a file's text and gives its paragraphs; `passages` finds the plain sentences in one, and
`in_common_words` says which passages have no rare words. Headings, tables, options, names and code are left out: a
small model that learns for minutes writes what it has read most, and rare words it cannot learn. Nothing is run or
imported, and macros and docstrings are found by their form. Cost: about 10 MB of input per second.
"""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Iterable

_SHORTEST, _LONGEST = 80, 2000  # characters of a passage: one short sentence leads nowhere, longer ones are lists
_SHORTEST_SENTENCE = 20  # characters
_COMMON = 8000  # words: those of the documentation of a whole system that its pages share
_UNUSUAL = 0.15  # of a paragraph's words, at most
_WORD = re.compile(r"[A-Z]?[a-z]+(?:['-][a-z]+)*|[AI]")
_PUNCTUATION = "()\"',.;?!"
_SENTENCE_END = re.compile(r"(?<=[.?!])\s+(?=[A-Z])")
# Of options, code, quotations, paths, names of functions and files, lists of parameters.
_MARKS = re.compile(
    r"--|==|[:=]\w|\s[:=]|^\w+:|\w_|_\w|[A-Z]{4}|[a-z][A-Z]|\d[a-zA-Z]|[a-z]\d|\w\.\w|\(\)|\(\d|[(\s]-\w|^-|\s'|"
    r"[<>|{}\\/\"\[\]%$@^~+#*]"
)
_MARKUP = re.compile(r"[`*]+")
_BLANK_LINES = re.compile(r"\n\s*\n")
_QUOTED = re.compile("(\"\"\"|''')(.*?)\\1", re.DOTALL)


def passages(paragraph: str, seen: set[int]) -> list[str]:
    """The plain sentences of a paragraph, as many of them together as follow one another.

    A sentence is plain if it goes from a capital letter to a full stop without marks. One that was ``seen`` before is
    left out: licences and the docstrings of methods that are alike repeat themselves, and a model would learn them by
    heart.
    """
    found: list[list[str]] = [[]]
    for sentence in _SENTENCE_END.split(paragraph):
        fits = len(sentence) >= _SHORTEST_SENTENCE and sentence[0].isupper() and sentence[-1] == "."
        if fits and _MARKS.search(sentence) is None and (mark := hash(sentence)) not in seen:
            seen.add(mark)
            found[-1].append(sentence)
        else:
            found.append([])
    joined = (" ".join(sentences) for sentences in found)
    return [one for one in joined if _SHORTEST <= len(one) <= _LONGEST]


def common_words(paragraphs: Iterable[str]) -> frozenset[str]:
    """The words that occur most; what has digits, marks or capitals inside is no word."""
    counts = Counter(word for one in paragraphs for word in _words(one))
    return frozenset(word for word, _ in counts.most_common(_COMMON) if word)


def in_common_words(paragraph: str, common: frozenset[str]) -> bool:
    words = _words(paragraph)
    return sum(word not in common for word in words) <= _UNUSUAL * len(words)


def _words(paragraph: str) -> list[str]:
    """In small letters; empty where something else than a word stands."""
    stripped = (part.strip(_PUNCTUATION) for part in paragraph.split())
    return [part.lower() if _WORD.fullmatch(part) else "" for part in stripped]


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
