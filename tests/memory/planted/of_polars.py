"""Keeps data frames of polars, whose allocator is its own."""

import os
import time

import polars
import truth

SECONDS = float(os.environ.get("SECONDS", "5"))
kept = []
for number in range(40):
    kept.append(polars.DataFrame({"a": polars.int_range(number, number + 512 * 1024, eager=True)}))  # 4 MiB
    time.sleep(SECONDS / 40)
truth.tell(held__anon__peak=truth.rollup("Pss_Anon"))
time.sleep(0.6)
os._exit(0)
