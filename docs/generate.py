"""Writes ``docs/api.md`` from the docstrings and the figures of the README from ``docs/benchmarks.md``: ``make docs``.

A docstring is the reference; this file only decides the order of names and lays them out. A test fails when a
page is not what this would write.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lowtide
import lowtide.torch
from lowtide import errors

ROOT = Path(__file__).resolve().parents[1]

# Public for other rooms of the package, not for users.
INTERNAL = {"at", "check", "checked_start", "cursors", "estimate_inmemory_data_size", "finish", "get_read_tasks", "own"}
INTERNAL |= {
    "checked_position",
    "dealing",
    "end_of_rows",
    "epoch_rows",
    "last_position",
    "place",
    "pools",
    "rows_at",
    "rows_in",
    "stores",
}
INTERNAL |= {"tokens"}

# What public calls give back.
GIVEN = [
    "lowtide.reading.rows.iteration:BatchIterator",
    "lowtide.windows:Windows",
    "lowtide.reading.documents.docs:Docs",
    "lowtide.mixture:Mixture",
    "lowtide.reading.plan:Plan",
    "lowtide.reading.places:Place",
    "lowtide.feed:FeedStats",
    "lowtide.torch.row_streams:RowDocs",
    "lowtide.reading.rows.column_stats:ColumnStats",
    "lowtide.create:ArrayWriter",
]

HEAD = """# API reference

<!-- Written by `make docs` from the docstrings. Change those, not this page. -->

Every public name: what it does, what it costs, what it raises. `import lowtide` gives all but the adapters, which are
imported by name (`import lowtide.torch`); each adapter needs the extra of its name. These pages explain how the parts
fit: [quick start](quickstart.md), [arrays](arrays.md), [documents](documents.md), [mixtures](mixtures.md),
[writing](writing.md), [resume](resume.md).

Wrong arguments raise `TypeError`, `ValueError` or `IndexError`, a missing file `FileNotFoundError`. All else that
can go wrong is a `LowtideError`; each kind is also the built-in error named beside it.
"""


def _parts() -> list[tuple[str, list[tuple[str, Any]]]]:
    """Headings and names, in the order a reader needs them; names that are not there are left out."""
    wanted: list[tuple[str, Any, list[str]]] = [
        ("Arrays", lowtide, ["open", "Array", "together", "Together", "create"]),
        ("Tokens", lowtide, ["open_tokens", "Tokens", "mix", "Feed"]),
        ("Memory", lowtide, ["watch", "release"]),
        ("Errors", errors, ["LowtideError", "FormatError", "StateError", "ReadError", "WriteError", "BudgetError"]),
        ("lowtide.torch", lowtide.torch, list(lowtide.torch.__all__)),
    ]
    parts = [
        (heading, [(name, getattr(home, name)) for name in names if hasattr(home, name)])
        for heading, home, names in wanted
    ]
    parts.insert(3, ("What they give you", [(name.partition(":")[2], _found(name)) for name in GIVEN if _found(name)]))
    for name in ("dask", "ray", "xgboost", "lightgbm"):
        try:
            module = importlib.import_module(f"lowtide.{name}")
        except ImportError:
            continue
        parts.append((f"lowtide.{name}", [(each, getattr(module, each)) for each in _own(module)]))
    return parts


def _found(name: str) -> Any:
    """The class at ``module:name``, or None where there is none."""
    module, _, attribute = name.partition(":")
    if importlib.util.find_spec(module) is None:
        return None
    return getattr(importlib.import_module(module), attribute, None)


def _own(module: Any) -> list[str]:
    names = getattr(module, "__all__", None) or [name for name in vars(module) if not name.startswith("_")]
    return [name for name in names if getattr(getattr(module, name), "__module__", "") == module.__name__]


def documented() -> Iterator[tuple[str, Any]]:
    """Every public name and method that the reference shows."""
    for _, names in _parts():
        for name, thing in names:
            yield name, thing
            if inspect.isclass(thing):
                yield from ((f"{name}.{method}", value) for method, value in _methods(thing))


def _methods(thing: type) -> Iterator[tuple[str, Any]]:
    """What a class adds that has a docstring, in the order of its source."""
    seen = set[str]()
    for base in thing.__mro__:
        if not base.__module__.startswith("lowtide"):
            continue
        for name, value in vars(base).items():
            public = not name.startswith("_") or name in {"__getitem__", "__len__", "__iter__", "__next__"}
            function = value.fget if isinstance(value, property) else value
            public = public and name not in INTERNAL
            if public and name not in seen and callable(function) and inspect.getdoc(function):
                seen.add(name)
                yield name, value


def _signature(name: str, thing: Any) -> str:
    if isinstance(thing, property):
        return name
    try:
        found = str(inspect.signature(thing))
    except (TypeError, ValueError):
        return name
    found = re.sub(r"\(self(, )?", "(", found)
    found = re.sub(r" -> .*$", "", found)
    found = re.sub(r": (?:[^,()=\[\]]|\[[^\]]*\]|\([^)]*\))+(?= = )", "", found)  # defaults say more than types
    found = re.sub(r": (?:[^,()=\[\]]|\[(?:[^\[\]]|\[[^\]]*\])*\])+(?=[,)])", "", found)
    return f"{name}{found}".replace(" = ", "=")


def _prose(thing: Any) -> str:
    """A docstring as Markdown: examples in blocks, double backquotes single."""
    lines, inside = [], False
    for line in (inspect.getdoc(thing) or "").replace("``", "`").splitlines():
        example = line.startswith((">>> ", "... "))
        if example and not inside:
            lines.append("```pycon")
        if inside and not example:
            lines.append("```")
        inside = example
        lines.append(line)
    return "\n".join([*lines, "```"] if inside else lines)


def _call(name: str, thing: Any) -> tuple[str, str]:
    """The heading, short enough for a list of headings, and how it is called where it takes something."""
    signature = _signature(name, thing)
    bare, opened, given = signature.partition("(")
    if given in ("", ")"):
        return f"`{signature}`", ""
    lines = textwrap.wrap(signature, 84, subsequent_indent=" " * (len(bare) + 1), break_on_hyphens=False)
    return f"`{bare}{opened})`", "```py\n" + "\n".join(lines) + "\n```\n\n"


def _section(name: str, thing: Any) -> str:
    if not inspect.isclass(thing):
        heading, block = _call(name, thing)
        return f"### {heading}\n\n{block}{_prose(thing)}\n"
    kinds = [base.__name__ for base in thing.__bases__ if base.__module__ == "builtins" and base is not object]
    also = f" (also {kinds[0]})" if issubclass(thing, errors.LowtideError) and kinds != ["Exception"] else ""
    parts = [f"### `{name}`{also}\n\n{_prose(thing)}\n"]
    for method, value in _methods(thing):
        heading, block = _call(f"{name}.{method}", value)
        parts.append(f"#### {heading}\n\n{block}{_prose(value)}\n")
    return "\n".join(parts)


def api() -> str:
    parts = [HEAD]
    for heading, names in _parts():
        parts.append(f"## {heading}\n")
        parts += [_section(name, thing) for name, thing in names]
    return "\n".join(parts)


def readme(root: Path) -> str:
    """The README with each of its figures as ``docs/benchmarks.md`` has it now, found by what was measured."""
    text = (root / "README.md").read_text("utf-8")
    figures = {}
    for line in (root / "docs" / "benchmarks.md").read_text("utf-8").splitlines():
        if line.startswith("| "):
            what, ours, baseline, ratio, *_ = (cell.strip() for cell in line.strip("|").split("|"))
            figures[what] = f"| {what} | {ours} | {baseline} | {ratio} |"
    begin, end = "<!-- figures: written by `make docs` from docs/benchmarks.md -->\n", "<!-- end of figures -->"
    if begin not in text:
        return text
    before, rest = text.split(begin)
    table, after = rest.split(end)
    head, rule, *rows = table.splitlines()
    lines = [head, rule, *(figures[line.strip("|").split("|")[0].strip()] for line in rows)]  # one that went: KeyError
    return f"{before}{begin}" + "\n".join(lines) + f"\n{end}{after}"


def pages(root: Path) -> dict[str, str]:
    """What the generated files should hold, by their path."""
    return {"docs/api.md": api(), "README.md": readme(root)}


if __name__ == "__main__":
    for path, content in pages(ROOT).items():
        if (ROOT / path).read_text("utf-8") != content if (ROOT / path).exists() else True:
            (ROOT / path).write_text(content, "utf-8")
            print(f"{path}: written")
