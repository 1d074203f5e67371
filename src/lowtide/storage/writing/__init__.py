"""New files: written with bounded dirty pages, and named only when they are complete.

``output.py`` is what ``lowtide.create`` writes through; ``behind.py`` keeps the disk close behind the writer;
``unfinished.py`` withholds the name until the end.
"""

from lowtide.storage.writing.output import Output

__all__ = ["Output"]
