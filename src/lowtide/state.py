"""Is a saved state of this data and this order? If not, what differs?

One idea: only what fixes the order is compared - data, length, order, seed - so another batch size, world size or
machine resumes exactly, and everything else is refused with both values.
"""

from __future__ import annotations

from typing import Any

from lowtide.errors import StateError

NAMES = {
    "blocks": "the tokens themselves (sampled blocks)",
    "tokens": "the number of tokens",
    "first": "where the split begins",
    "files": "the sizes of the files",
    "dtype": "the dtype",
}


def check_state(state: Any, mine: dict[str, Any], *, most: int) -> None:
    """StateError naming the first thing in which ``state`` differs from a feed's own; ``most``: rows there can be."""
    if not isinstance(state, dict) or state.get("lowtide") != 1:
        found = type(state).__name__ if not isinstance(state, dict) else f"version {state.get('lowtide')!r}"
        raise StateError(
            f"state: expected a feed's state_dict() of version 1, got {found}. Save it with feed.state_dict()."
        )
    rows = state.get("rows")
    if isinstance(rows, bool) or not isinstance(rows, int) or rows < 0:
        raise StateError(f"state: expected rows of 0 or more, got {rows!r}. The state is damaged: use an older one.")
    for name in mine:
        if name not in ("rows", "data", "lowtide") and state.get(name) != mine[name]:
            raise StateError(
                f"state: expected {name}={mine[name]!r}, got {state.get(name)!r}. "
                f"Make the feed with {name}={state.get(name)!r} to go on where it was."
            )
    _check_data(state.get("data"), mine["data"])
    if rows > most:
        raise StateError(f"state: expected rows of at most {most}, got {rows}. The state is damaged: use an older one.")


def _check_data(data: Any, mine: dict[str, Any]) -> None:
    if not isinstance(data, dict):
        raise StateError("state: expected a fingerprint of the data, got none. The state is damaged: use an older one.")
    for name, value in mine.items():
        if data.get(name) != value:
            raise StateError(
                f"state: expected the same corpus, got another: {NAMES[name]} was {_short(data.get(name))} and is "
                f"{_short(value)}. Open the corpus the state was saved with."
            )


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
