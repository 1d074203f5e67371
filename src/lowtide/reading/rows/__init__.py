"""Rows of arrays: what ``a[key]`` means, parts of arrays, and the readers that turn row numbers into batches.

``reader`` reads rows of files, ``resident`` takes them from memory, ``members`` joins several of either. ``iteration``
walks over any of them; it is the only file here that knows orders and positions.
"""
