"""The torture run: seeded campaigns of faults against the library and its command line, for as long as you give it.

``python -m tests.torture --minutes 10 --seed N [--only NAME]``, or ``make torture``. It is no part of ``make test``,
which runs one short program of each campaign to see that the campaign itself works.

A campaign is a function that runs one *program*, chosen by its seed, and counts what it saw. Every program
runs in a process of its own with a generous deadline, so that a hang or a crash is seen and not suffered; a failure
prints the one command that runs that program again. Campaigns use the public names alone.
"""
