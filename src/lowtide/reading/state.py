"""Is a saved state of this data and this order? If not, what differs?

Only what fixes the order is compared - data, length, order, seed - so a feed resumes exactly with another batch
size, world size or machine; any other difference is refused, naming both values.
"""

from __future__ import annotations

from typing import Any

from lowtide.errors import StateError
from lowtide.order.steps import MOST_ROWS
from lowtide.reading.fingerprint import hash_of_sizes

VERSION = 1

NAMES = {
    "blocks": "the data itself (sampled blocks)",
    "tokens": "the number of tokens",
    "shape": "the shape",
    "first": "where the split begins",
    "files": "the sizes of the files",
    "dtype": "the dtype",
    "part": "the part of the array",
    "members": "the arrays read together",
}
DAMAGED = "The state is damaged: use an older one"


def check_state(state: Any, mine: dict[str, Any], position: str, maker: str, most: int | None) -> int:
    """The position that ``state`` holds under the name ``position``, if its data and order are those of ``mine``.

    StateError names the first thing that differs. ``maker``: what makes such states; ``most``: the last possible
    position, None for an endless order.
    """
    if not isinstance(state, dict) or state.get("lowtide") != VERSION or position not in state:
        found = type(state).__name__ if not isinstance(state, dict) else f"version {state.get('lowtide')!r}"
        if isinstance(state, dict) and state.get("lowtide") == VERSION:
            found = f"one without {position!r}"
        article = "an" if maker[0] in "aeiou" else "a"
        raise StateError(
            f"state: expected {article} {maker}'s state_dict() of version {VERSION}, got {found}. "
            f"Save it with {maker}.state_dict()."
        )
    rows = state[position]
    if isinstance(rows, bool) or not isinstance(rows, int) or rows < 0:
        raise StateError(f"state: expected {position} of 0 or more, got {rows!r}. {DAMAGED}.")
    _refuse_old_locality(state, maker)
    # A setting that one of the two does not mention has its default there, None.
    for name in sorted(({*mine, *state}) - {position, "data", "lowtide"}):
        if name == "mixture" and name not in mine:
            raise StateError(
                "state: expected one of a single corpus, got one of a mixture. Load it into a feed of lowtide.mix(...)."
            )
        if state.get(name) != mine.get(name):
            raise StateError(
                f"state: expected {name}={mine.get(name)!r}, got {state.get(name)!r}. "
                f"Make the {maker} with {name}={state.get(name)!r} to continue from there."
            )
    _check_data(state.get("data"), mine["data"])
    most = MOST_ROWS if most is None else most
    if rows > most:
        raise StateError(f"state: expected {position} of at most {most}, got {rows}. {DAMAGED}.")
    return rows


def _refuse_old_locality(state: dict[str, Any], maker: str) -> None:
    """A local shuffle once mixed neighbouring rows only. That order cannot be had any more."""
    old = state.get("neighbours")
    name, value = ("locality", state.get("locality")) if old is None else ("neighbours", old)
    if isinstance(value, int):
        raise StateError(
            f"state: expected locality= of windows made of blocks from all over the data, got {name}={value}, saved "
            f"when locality= mixed neighbours only: an order that no longer exists. Begin a new {maker}, or continue "
            "with the version that saved it."
        )


def _check_data(data: Any, mine: dict[str, Any]) -> None:
    if not isinstance(data, dict):
        raise StateError(f"state: expected a fingerprint of the data, got none. {DAMAGED}.")
    for name, value in mine.items():
        if _of_today(name, data.get(name)) != value:
            raise StateError(
                f"state: expected the same data, got other data: {NAMES.get(name, name)} was "
                f"{_short(data.get(name))} and is {_short(value)}. Open the data the state was saved with."
            )


def _of_today(name: str, value: Any) -> Any:
    """Old states list every file's size; new ones hold a hash of the list."""
    if name == "files" and isinstance(value, list) and all(isinstance(size, int) for size in value):
        return hash_of_sizes(value)
    return value


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
