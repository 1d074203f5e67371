"""Files, strategies, page-cache rungs, aligned buffers and leases: bytes on disk into memory we own.

The reading path, top to bottom: ``store.py`` (``start`` and ``finish``) -> ``read.py`` (the default strategy) ->
``watched_files.py`` (open files) and ``buffers.py`` (where bytes land). ``mapped.py`` has the other strategies,
``spans.py`` the arithmetic, ``budget.py`` the count of what is held, ``forks.py`` what children inherit, and
``writing/`` makes new files. Nothing is imported here: a report written by ``own_files.py`` needs no NumPy.
"""
