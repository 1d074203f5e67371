"""A verdict on memory as terminal text (``text``), one HTML page (``html``) or a picture (``picture``).

One idea: ``content`` decides what is said and ``series`` what is drawn, once; the three writers only lay it
out. Nothing here measures or judges. Import the writer you need: rich is loaded by ``text`` alone,
matplotlib by ``picture`` alone, and only when it draws.
"""
