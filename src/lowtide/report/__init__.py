"""A verdict on memory as terminal text (``terminal``), one HTML page (``html``) or a picture (``png``); metrics too.

``content`` decides what is said and ``series`` what is drawn, once; the writers only lay it out. Two files draw:
``chart`` for HTML and ``png``. Nothing here measures or judges. Import the writer you need: rich is loaded by
``terminal`` alone, matplotlib by ``png`` alone, and only when it draws.
"""
