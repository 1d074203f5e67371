"""Fills a table of duckdb in memory, whose allocator is its own."""

import os
import time

import duckdb
import truth

SECONDS = float(os.environ.get("SECONDS", "5"))
base = duckdb.connect()
base.execute("create table t (a double, b double)")
for _ in range(40):
    base.execute("insert into t select random(), random() from range(300000)")
    time.sleep(SECONDS / 40)
truth.tell(held__anon__peak=truth.rollup("Pss_Anon"))
time.sleep(0.6)
os._exit(0)
