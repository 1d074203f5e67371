"""The one reading path, shared by arrays and feeds: upcoming numbers -> filler -> a filled, lent batch.

``upcoming.py`` computes which rows or windows come next, ``row_filler.py`` and ``window_filler.py`` turn numbers into
filled buffers through the store, ``iterators.py`` walks over arrays with them (``feed.py`` walks over tokens).
``passes.py`` and ``streams.py`` say which row or window is the k-th, ``state.py`` and ``fingerprint.py`` whether a
saved position belongs to this data, ``indexing.py`` what ``a[key]`` means, ``plan.py`` what it will all cost.
"""
