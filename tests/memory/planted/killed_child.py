"""A child grows until the kernel kills it; the parent lives on and ends by itself."""

import os
import time

child = os.fork()
if child == 0:
    kept = []
    while True:
        kept.append(os.urandom(1024**2))
        time.sleep(0.01)
os.waitpid(child, 0)
time.sleep(1)
