"""Measures the ways to read a file on the user's own disk, each in a fresh process, and says which to take.

The path of one figure: ``jobs.py`` (what is measured) -> ``rounds.py`` (a process for each, in rounds) -> ``case.py``
(that process: cold, then warm) -> ``ways.py`` (the loops themselves) -> ``recommend.py`` (what the figures recommend)
-> ``presentation.py`` (tables and JSON). ``survey`` finds out what a path holds.
"""
