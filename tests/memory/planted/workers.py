"""Grows workers: two forked children read a list of objects that the parent made; each read copies a page."""

import os
import time

SECONDS = float(os.environ.get("SECONDS", "4"))
ITEMS = 1_000_000

items = [f"sample number {number} with a name of some length" for number in range(ITEMS)]
children = []
for _ in range(2):
    child = os.fork()
    if child == 0:
        for number in range(0, ITEMS, 1000):
            kept = items[number : number + 1000]  # counts every object's references, and so writes to it
            time.sleep(SECONDS * 1000 / ITEMS)
        os._exit(0)
    children.append(child)
for child in children:
    os.waitpid(child, 0)
