"""Documents in batches: where they end, how whole ones are packed into rows, and what a batch says about them.

``boundaries.py`` finds where documents end and ``boundary_index.py`` keeps it (``kept_arrays.py``); ``docs.py`` writes
what a batch says about them. Two readers: ``stride.py`` (windows with their documents) and ``packed.py`` (rows of whole
documents, as ``packing.py`` packed them). ``document_counts.py`` counts.
"""
