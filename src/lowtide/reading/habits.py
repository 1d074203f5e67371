"""What people write by habit from NumPy, pandas and torch, answered with what to write here instead.

One table for names, one for keywords and one list of operators: everything that is opened uses them. None of it
runs on the path of a batch; a name that is not in the tables is Python's own error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

# Keyword -> what was expected and what to write; ``{call}`` and ``{value}`` are filled in.
_KEYWORDS = {
    "batch_size": ("its batch as the first argument", "Use {call}({value!r})"),
    "drop_last": ("no such choice: a short last batch is given too", "Skip it in the loop: if len(rows) < batch"),
    "shuffle": ("an order by the name of the call", "Use shuffled(batch, seed=0), or chunks() for the file's order"),
    "num_workers": ("no workers: what comes next is read ahead without them", "Leave it out"),
    "mmap_mode": ("strategy=, because files are read and not mapped", "Leave it out, or use strategy='map'"),
}
_FEED_KEYWORDS = {
    "drop_last": ("no such choice: only a sequential feed has a short batch", "Use {call}(...).whole_batches()"),
    "shuffle": ("order=", "Use order='shuffled' (the default) or order='sequential'"),
}
_IN_MEMORY = ["T", "astype", "copy", "flatten", "ravel", "reshape", "squeeze", "tolist", "transpose"]
_OF_COLUMNS = ("mean", "std", "min", "max")
# Names of rows, and of tokens.
ROW_NAMES = {
    **dict.fromkeys(_IN_MEMORY, "X[:].{name} where it fits in memory, or rows.{name} for rows in X.chunks()"),
    **dict.fromkeys(_OF_COLUMNS, "X.stats().{name}: of every column, in one pass"),
    "var": "X.stats().std ** 2: of every column, in one pass",
    "sum": "sum(rows.sum(axis=0) for rows in X.chunks())",
    **dict.fromkeys(("iloc", "loc", "head"), "X[10:20]"),
    **dict.fromkeys(("values", "to_numpy", "numpy"), "X[:] where it fits in memory, or X.chunks()"),
    **dict.fromkeys(("batch", "batches", "shuffle"), "X.shuffled(4096, seed=0), or X.chunks(4096)"),
}
TOKEN_NAMES = {
    **dict.fromkeys((*_IN_MEMORY, *_OF_COLUMNS, "sum"), "tokens[10:20].{name}, of a slice that fits in memory"),
    **dict.fromkeys(("chunks", "shuffled", "batch", "shuffle"), "tokens.batches(64, length=1024)"),
}
TOGETHER_NAMES = {
    "shape": "len(both), and .shape of the arrays it was made of",
    "dtype": ".dtype of the arrays it was made of",
    "stats": ".stats() of the arrays it was made of",
    **dict.fromkeys(("batch", "batches", "shuffle"), "both.shuffled(4096, seed=0), or both.chunks(4096)"),
}
_OPERATORS = {
    "eq": "==",
    "ne": "!=",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
    "add": "+",
    "sub": "-",
    "mul": "*",
    "truediv": "/",
    "floordiv": "//",
    "mod": "%",
    "pow": "**",
    "matmul": "@",
}


class OnDisk:
    """Rows or tokens on disk: comparing or computing with them is an error that says what to write instead."""

    where: Any
    not_here: Mapping[str, str] = {}  # names that it lacks, and what to write instead
    __hash__ = object.__hash__  # by identity, although == is refused

    def __getattr__(self, name: str) -> Any:
        kind, instead = type(self).__name__, type(self).not_here.get(name)
        said = f"{kind!r} object has no attribute {name!r}"
        if instead is not None:
            said = f"{self.where}: expected a name of lowtide.{kind}, got .{name}. Use {instead.format(name=name)}."
        raise AttributeError(said, name=name, obj=self)

    def __setitem__(self, where: Any, value: Any) -> None:
        raise TypeError(
            f"{self.where}: expected to be read only, got an assignment. "
            "Write a new file with lowtide.create(path), or change numbers in memory: rows = X[10:20]."
        )


def _refusing(sign: str, *, swapped: bool = False) -> Callable[[OnDisk, Any], Any]:
    def refuse(self: OnDisk, other: Any) -> Any:
        if other is None:
            return NotImplemented
        written = f"... {sign} X[:]" if swapped else f"X[:] {sign} ..."
        raise TypeError(
            f"{self.where}: expected numbers in memory for {sign}, got numbers on disk. Read them first: {written}, or "
            "one chunk at a time if they do not fit in memory."
        )

    return refuse


for _name, _sign in _OPERATORS.items():
    setattr(OnDisk, f"__{_name}__", _refusing(_sign))
    if _sign not in ("==", "!=", "<", "<=", ">", ">="):
        setattr(OnDisk, f"__r{_name}__", _refusing(_sign, swapped=True))


def answers_habits(call: Callable[P, R]) -> Callable[P, R]:
    """``call``, with our own errors, instead of Python's, for keywords of other libraries."""
    code = call.__code__
    known = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    table = {**_KEYWORDS, **_FEED_KEYWORDS} if "length" in known or call.__name__ == "batches" else _KEYWORDS
    own = int(known[0] == "self")
    required = set(known[code.co_argcount :]) - set(call.__kwdefaults__ or ())
    foreign = {name: said for name, said in table.items() if name not in known}

    @wraps(call)
    def answered(*args: P.args, **given: P.kwargs) -> R:
        for name, value in given.items():
            if name in foreign:
                expected, instead = foreign[name]
                way = instead.format(call=call.__name__, value=value)
                raise TypeError(f"{call.__name__}: expected {expected}, got {name}={value!r}. {way}.")
        if len(args) > code.co_argcount and known[code.co_argcount :]:
            plain, extra = args[own : code.co_argcount], args[code.co_argcount]
            written = ", ".join([*(repr(one) for one in plain), f"{known[code.co_argcount]}={extra!r}"])
            raise TypeError(
                f"{call.__name__}: expected {len(plain)} without a name, got {len(args) - own}. "
                f"Use {call.__name__}({written})."
            )
        if "length" in required and "length" not in given and set(given) <= set(known):
            batch = repr(args[own]) if len(args) > own else "64"
            raise TypeError(
                f"{call.__name__}: expected length=, the tokens of a window, got none. "
                f"Use {call.__name__}({batch}, length=1024)."
            )
        return call(*args, **given)

    call.__qualname__ = call.__name__  # so that Python's error for a missing argument does not name an internal class
    return answered
