"""A verdict on memory as terminal text (``terminal``), one HTML page (``html``) or a picture (``png``); metrics too.

``content`` decides what is said and ``series`` what is drawn, once; the writers only lay it out. Two files draw:
``chart`` for HTML and ``png``. Nothing here measures or judges. A writer is imported on first use, as ``report.html``:
only ``terminal`` loads rich, only ``endpoint`` an HTTP server, and only ``png`` matplotlib, when it draws. A process
that watches for a week holds none of them.
"""

import importlib
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lowtide.report import endpoint, html, png, terminal

__all__ = ["endpoint", "html", "png", "terminal"]


def __getattr__(name: str) -> ModuleType:
    if name not in __all__:
        raise AttributeError(f"module 'lowtide.report' has no attribute {name!r}")
    return importlib.import_module(f"lowtide.report.{name}")
