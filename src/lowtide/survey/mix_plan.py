"""What ``--mix`` means: corpora by name with weights, and the weights from later rows on.

It is one string, so that a checkpoint keeps it like any other setting: ``web=PATH:0.7,code=PATH:0.3``, with
``;ROW:web=0.5,math=PATH:0.5`` for each change, or a TOML file's table as JSON. `lowtide.mix` checks the weights.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

Part = TypeVar("Part")  # tokens or windows
_MIX_USAGE = "Use --mix web=PATH:0.7,code=PATH:0.3"
_THEN = "then"


@dataclass(frozen=True)
class MixPlan:
    """Paths by name, the weights at first, and the weights from each later row on."""

    paths: dict[str, str]
    first: dict[str, float]
    then: dict[int, dict[str, float]] = field(default_factory=dict)

    def joined(self, parts: Mapping[str, Part]) -> dict[str, tuple[Part, float]]:
        """The first argument of `lowtide.mix`, given these corpora by name."""
        return {name: (parts[name], weight) for name, weight in self.first.items()}

    def joined_later(self, parts: Mapping[str, Part]) -> dict[int, dict[str, float | tuple[Part, float]]]:
        """Its ``then``: a new name comes with its corpus."""
        known = set(self.first)
        later: dict[int, dict[str, float | tuple[Part, float]]] = {}
        for row, weights in self.then.items():
            later[row] = {name: weight if name in known else (parts[name], weight) for name, weight in weights.items()}
            known |= weights.keys()
        return later


def mix_plan(text: str) -> MixPlan:
    """The plan that a setting spells; ValueError if it is not one."""
    table = _from_json(text) if text.lstrip().startswith("{") else _from_flag(text)
    paths: dict[str, str] = {}
    changes = table.pop(_THEN, {})
    first = _weights("--mix", table, paths)
    if not isinstance(changes, Mapping):
        raise _wrong("a table of changes by row", changes)
    then = {_row(str(row)): changes[row] for row in changes}
    return MixPlan(paths, first, {row: _weights(f"--mix at row {row}", then[row], paths) for row in sorted(then)})


def _from_json(text: str) -> dict[str, Any]:
    try:
        table = json.loads(text)
    except ValueError as problem:
        raise _wrong("a table of corpora", str(problem)) from None
    return dict(table)


def _from_flag(text: str) -> dict[str, Any]:
    first, *changes = text.split(";")
    table = _entries(first)
    if changes:
        table[_THEN] = {row: _entries(rest) for row, _, rest in (change.partition(":") for change in changes)}
    return table


def _entries(text: str) -> dict[str, Any]:
    """``name=PATH:weight`` or ``name=weight``, with commas between."""
    found: dict[str, Any] = {}
    for entry in text.split(","):
        name, equals, value = entry.strip().partition("=")
        path, colon, weight = value.rpartition(":")
        if not name or not equals or name == _THEN:
            raise _wrong("name=PATH:weight for each corpus", entry)
        if name in found:
            raise _wrong("each corpus once", f"{name!r} twice")
        number = _number(weight, entry)
        found[name] = [path, number] if colon else number
    return found


def _number(text: str, entry: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise _wrong("a weight after the last colon", entry) from None


def _weights(where: str, table: object, paths: dict[str, str]) -> dict[str, float]:
    """Weights by name; the paths of new names are added to ``paths``."""
    if not isinstance(table, Mapping) or not table:
        raise _wrong("corpora by name", table)
    found: dict[str, float] = {}
    for name, value in table.items():
        path, weight = value if isinstance(value, list) and len(value) == 2 else (None, value)
        if isinstance(weight, bool) or not isinstance(weight, (int, float)) or not isinstance(path, (str, type(None))):
            raise _wrong(f"a path and a weight for {name!r}", value)
        if path is None and name not in paths:
            raise ValueError(
                f"{where}: expected a path for {name!r}, which is new there, got only a weight. "
                f"Use {name}=PATH:{weight}."
            )
        if path is not None and paths.setdefault(str(name), path) != path:
            raise ValueError(
                f"{where}: expected {paths[name]} for {name!r} as before, got {path}. Give it another name."
            )
        found[str(name)] = float(weight)
    return found


def _row(text: str) -> int:
    if not text.strip().isdigit() or int(text) < 1:
        raise _wrong("changes at rows from 1 on, as in ;1000000:web=0.5", text)
    return int(text)


def _wrong(expected: str, got: object) -> ValueError:
    return ValueError(f"--mix: expected {expected}, got {str(got)[:80]!r}. {_MIX_USAGE}.")
