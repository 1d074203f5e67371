"""Keeps 24 MiB and lives on while another process of its cgroup is killed."""

import os
import time

kept = os.urandom(24 * 1024**2)
time.sleep(float(os.environ.get("SECONDS", "6")))
