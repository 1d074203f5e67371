"""What everything opened shares: ``close()``, a ``with`` block, and a small table in notebooks."""

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
        """Close its files, for all its parts, feeds and iterators; what it was made from stays open. Arrays already
        handed out stay valid; closing twice is fine. A ``with`` block does the same."""
        for store in self.stores:
            store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def html_table(title: str, facts: Mapping[str, str]) -> str:
    """A caption and one line per fact; every text escaped, no style beyond the notebook's own."""
    from html import escape  # here: only notebooks need it

    rows = "".join(
        f'<tr><th style="text-align:left">{escape(name)}</th><td style="text-align:left">{escape(value)}</td></tr>'
        for name, value in facts.items()
    )
    return f"<table><caption>{escape(title)}</caption>{rows}</table>"
