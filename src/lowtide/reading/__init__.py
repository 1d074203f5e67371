"""The one reading path, shared by arrays and feeds: numbers of a stream -> a reader -> a filled, lent batch.

``cursor.py`` is the one iterator, ``ahead.py`` the batches of a stream and those started early. A reader has two verbs,
``start(numbers)`` and ``finish()``: ``window_reader.py`` for windows of tokens, ``rows/`` for arrays, ``documents/``
for windows with documents and packed rows, ``mixtures/`` for several corpora. ``admission.py`` asks the budget once,
``plan.py`` says what it will all cost, ``state.py`` and ``fingerprint.py`` whether a saved position belongs to this
data.
"""
