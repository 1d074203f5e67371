"""Grows the heap: batches kept in a list, the most common real leak."""

import os
import time

import truth

SECONDS = float(os.environ.get("SECONDS", "4"))
kept = []
end = time.monotonic() + SECONDS
while time.monotonic() < end:
    kept.append(bytearray(os.urandom(4096)) * 256)  # 1 MiB
    time.sleep(0.02)
truth.tell(held__anon__peak=truth.rollup("Pss_Anon"))
time.sleep(0.6)
os._exit(0)  # at the highest point: nothing freed before, which a sample might see
