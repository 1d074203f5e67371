"""Scans a table of a SQLite file."""

import os
import sqlite3
import sys
import tempfile
import time
from pathlib import Path

SECONDS = float(os.environ.get("SECONDS", "5"))
COUNT, VALUE = 160, 1024**2
with tempfile.TemporaryDirectory(dir=sys.argv[1]) as directory:
    path = Path(directory, "rows.db")
    base = sqlite3.connect(path)
    base.execute("create table t (id integer primary key, v blob)")
    for number in range(COUNT):
        base.execute("insert into t values (?, ?)", (number, os.urandom(VALUE)))
    base.commit()
    base.close()
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    base = sqlite3.connect(path)
    for number in range(COUNT):
        base.execute("select length(hex(v)) from t where id = ?", (number,)).fetchone()
        time.sleep(SECONDS / COUNT)
    time.sleep(0.6)
    os._exit(0)
