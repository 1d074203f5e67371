"""Keeps a copy of a data frame per step."""

import os
import time

import numpy as np
import pandas as pd
import truth

SECONDS = float(os.environ.get("SECONDS", "5"))
frame = pd.DataFrame(np.ones((64 * 1024, 8)))  # 4 MiB
kept = []
for number in range(40):
    kept.append(frame + number)
    time.sleep(SECONDS / 40)
truth.tell(held__anon__peak=truth.rollup("Pss_Anon"))
time.sleep(0.6)
os._exit(0)
