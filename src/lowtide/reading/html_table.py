"""What a notebook shows for an object: one small table, every text escaped, no style beyond the notebook's own."""

from __future__ import annotations

from collections.abc import Mapping


def html_table(title: str, facts: Mapping[str, str]) -> str:
    """A caption and one line per fact."""
    from html import escape  # here: notebooks alone need it

    rows = "".join(
        f'<tr><th style="text-align:left">{escape(name)}</th><td style="text-align:left">{escape(value)}</td></tr>'
        for name, value in facts.items()
    )
    return f"<table><caption>{escape(title)}</caption>{rows}</table>"
