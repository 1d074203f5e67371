"""Grows mapped pages of an Arrow file: rows of a HF dataset, which maps its files."""

import os
import sys
import tempfile
import time
from collections.abc import Iterator

os.environ["HF_DATASETS_OFFLINE"] = "1"
os.environ["HF_DATASETS_DISABLE_PROGRESS_BARS"] = "1"
SECONDS = float(os.environ.get("SECONDS", "4"))
ROWS = 192

with tempfile.TemporaryDirectory(dir=sys.argv[1] if sys.argv[1:] else None) as directory:
    os.environ["HF_HOME"] = directory
    import datasets

    datasets.disable_progress_bars()

    def rows() -> Iterator[dict[str, object]]:
        for number in range(ROWS):
            yield {"data": os.urandom(1024**2), "number": number}

    made = datasets.Dataset.from_generator(rows, cache_dir=directory, writer_batch_size=8)
    os.sync()
    data = datasets.Dataset.from_file(made.cache_files[0]["filename"])
    del made
    time.sleep(SECONDS / 4)
    total = 0
    for number in range(ROWS):
        total += len(data[number]["data"])
        time.sleep(SECONDS / ROWS)
    # Held, so that a close look sees what was reached: while something moves they are 2 s apart at most.
    time.sleep(2.5)
    os._exit(0)  # at the highest point: nothing closed, deleted or freed before, which a sample might see
