"""What everything opened has: it is closed by hand or by a ``with`` block, and a notebook shows it as a small table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Self

from lowtide.storage.store import Store


class Opened:
    """Something that reads from stores of its own."""

    @property
    def stores(self) -> Sequence[Store]:
        raise NotImplementedError

    def close(self) -> None:
        """Close its files, for every part, feed and iterator of it; what it was made of stays open. Arrays already
        handed out stay valid; closing twice is fine. A ``with`` block does it."""
        for store in self.stores:
            store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def html_table(title: str, facts: Mapping[str, str]) -> str:
    """A caption and one line per fact; every text escaped, no style beyond the notebook's own."""
    from html import escape  # here: notebooks alone need it

    rows = "".join(
        f'<tr><th style="text-align:left">{escape(name)}</th><td style="text-align:left">{escape(value)}</td></tr>'
        for name, value in facts.items()
    )
    return f"<table><caption>{escape(title)}</caption>{rows}</table>"
