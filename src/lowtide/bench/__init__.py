"""Measures the ways to read a file on the user's own disk, each in a fresh process, and says which to take.

The path of one figure: ``jobs.py`` (what is measured) -> ``run.py`` (a process for each, in rounds) -> ``case.py``
(that process: cold, then warm) -> ``ways.py`` (the loops themselves) -> ``advice.py`` (what the figures recommend) ->
``text.py``. ``data.py`` finds out what a path holds, also for ``lowtide info`` and ``lowtide plan``.
"""
