"""Reads every value of a LevelDB directory: very many files of 2 MiB."""

import os
import sys
import tempfile
import time
from pathlib import Path

import plyvel
from truth import tell

SECONDS = float(os.environ.get("SECONDS", "5"))
COUNT, VALUE = 1600, 100 * 1024
with tempfile.TemporaryDirectory(dir=sys.argv[1]) as directory:
    base = plyvel.DB(directory, create_if_missing=True, compression=None)
    for number in range(COUNT):
        base.put(b"%06d" % number, os.urandom(VALUE))
    base.close()
    for each in Path(directory).iterdir():
        fd = os.open(each, os.O_RDONLY)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)
    base = plyvel.DB(directory)
    for number in range(COUNT):
        base.get(b"%06d" % number)
        time.sleep(SECONDS / COUNT)
    tell(owner=sum(each.stat().st_size for each in Path(directory).glob("*.ldb")))
    time.sleep(2.2)
    os._exit(0)
