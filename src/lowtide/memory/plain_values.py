"""Samples, traces and verdicts as dicts, lists, numbers and text, and back.

One idea: the dataclasses' own annotations say what a dict must hold, so that a trace written today is read tomorrow,
and one that was damaged is refused by the name of the field. Unknown keys are passed over: a newer writer may add
some.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar

from lowtide.errors import FormatError
from lowtide.memory import findings, samples

_Value = TypeVar("_Value")
_PLAIN: dict[str, tuple[type, ...]] = {"int": (int,), "float": (int, float), "str": (str,), "bool": (bool,)}


def to_dict(value: Any) -> dict[str, Any]:
    """A value of samples.py or findings.py as JSON-safe dicts, with the computed parts a reader would want."""
    data = _plain(value)
    if isinstance(value, findings.Verdict):
        data["danger"] = value.danger
        if value.budget is not None:
            data["budget"]["ok"] = value.budget.ok
        if value.held is not None:
            data["held"] = held_dict(value.held)
    return data  # type: ignore[no-any-return]  # a dataclass becomes a dict


def held_dict(held: findings.HeldMemory) -> dict[str, Any]:
    """What was held, by kind: ``end`` and ``peak`` in bytes and the ``owners`` at the peak; the sums under
    ``total``."""
    totals = {name: getattr(held, name) for name in _HELD_TOTALS} | {"share": held.share}
    return {
        **{each.kind: _plain(each) for each in held.kinds},
        "total": totals,
    }


_HELD_TOTALS = ("end", "peak", "seconds", "takeable", "stays", "limit", "limit_set_by", "limit_used", "look_age")


def _plain(value: Any) -> Any:
    """As dataclasses.asdict, four times quicker: nothing here needs a deep copy."""
    if dataclasses.is_dataclass(value):
        return {name: _plain(getattr(value, name)) for name in _names(type(value))}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value


def _names(kind: type) -> tuple[str, ...]:
    known = _NAMES.get(kind)
    if known is None:
        known = _NAMES[kind] = tuple(item.name for item in dataclasses.fields(kind))
    return known


_NAMES: dict[type, tuple[str, ...]] = {}


def from_dict(kind: type[_Value], data: object) -> _Value:
    """The value back from its dict; FormatError when a field is missing or of another type."""
    if not isinstance(data, dict):
        raise FormatError(f"trace: expected {kind.__name__} as an object, got {type(data).__name__}. Record it again.")
    if kind is findings.HeldMemory:
        data = _holding_fields(data)
    known = {}
    for item in dataclasses.fields(kind):  # type: ignore[arg-type]  # every kind passed in is one of our dataclasses
        if item.name in data:
            known[item.name] = _read(f"{kind.__name__}.{item.name}", str(item.type), data[item.name])
    try:
        return kind(**known)
    except TypeError as problem:  # a field without default is missing
        raise FormatError(
            f"trace: expected a whole {kind.__name__}, got one with keys {sorted(map(str, data))}. Record it again."
        ) from problem


def _holding_fields(data: dict[str, Any]) -> dict[str, Any]:
    total = data.get("total")
    if not isinstance(total, dict):
        return data
    return {**total, "kinds": [item for name, item in data.items() if name != "total"]}


def _ours(name: str) -> type | None:
    return getattr(samples, name, None) or getattr(findings, name, None)


def _read(name: str, declared: str, value: Any) -> Any:
    """``value`` if it is what the field declares, built up where that is another value of ours."""
    optional = declared.removesuffix(" | None")
    if optional != declared and value is None:
        return None
    inner = optional.removeprefix("tuple[").removesuffix(", ...]")
    if optional.startswith("tuple[") and isinstance(value, list | tuple):
        build = _builder(inner)
        if build is not None:
            return tuple(build(item) for item in value)
        if all(isinstance(item, str) for item in value):
            return tuple(value)
    elif optional == "dict[str, str]" and isinstance(value, dict):
        return {str(key): str(item) for key, item in value.items()}
    elif (build := _builder(optional)) is not None and isinstance(value, dict):
        return build(value)
    wanted = _PLAIN.get(optional, ())
    if isinstance(value, wanted) and (optional == "bool" or not isinstance(value, bool)):
        return value
    raise FormatError(f"trace: expected {name} to be {declared}, got {value!r:.60}. Record it again.")


def _builder(name: str) -> Callable[[object], Any] | None:
    kind = _ours(name) if name[:1].isupper() else None
    return None if kind is None else lambda data: from_dict(kind, data)
