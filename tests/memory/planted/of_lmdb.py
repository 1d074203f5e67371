"""Reads every value of an LMDB file, which it maps."""

import os
import sys
import tempfile
import time

import lmdb

SECONDS = float(os.environ.get("SECONDS", "5"))
COUNT, VALUE = 160, 1024**2
with tempfile.TemporaryDirectory(dir=sys.argv[1]) as directory:
    environment = lmdb.open(directory, map_size=2**30)
    with environment.begin(write=True) as writing:
        for number in range(COUNT):
            writing.put(b"%06d" % number, os.urandom(VALUE))
    environment.sync(True)
    environment.close()
    environment = lmdb.open(directory, map_size=2**30, readonly=True, lock=False)
    with environment.begin(buffers=True) as reading:
        for number in range(COUNT):
            sum(bytes(reading.get(b"%06d" % number))[::4096])
            time.sleep(SECONDS / COUNT)
        time.sleep(2.2)
        os._exit(0)
