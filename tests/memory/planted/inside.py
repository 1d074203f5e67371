"""Moves itself into a cgroup, then becomes a command: ``python inside.py DIRECTORY COMMAND ...``."""

import os
import sys
from pathlib import Path

Path(sys.argv[1], "cgroup.procs").write_text(str(os.getpid()))
os.execvp(sys.argv[2], sys.argv[2:])
