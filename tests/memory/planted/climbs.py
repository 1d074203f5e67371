"""Grows until somebody stops it."""

import os
import time

kept = []
while True:
    kept.append(os.urandom(1024**2))
    time.sleep(0.01)
