"""gunicorn with two workers that each keep what their requests made."""

import http.client
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import truth

SECONDS = float(os.environ.get("SECONDS", "6"))
APP = """
import os
kept = []
def app(environ, start):
    kept.append(os.urandom(1024**2))
    start("200 OK", [("Content-Type", "text/plain")])
    return [str(os.getpid()).encode()]
"""
with tempfile.TemporaryDirectory(dir=sys.argv[1]) as directory:
    Path(directory, "leaky.py").write_text(APP)
    port = 20_000 + os.getpid() % 20_000
    words = [sys.executable, "-m", "gunicorn", "--workers", "2", "--bind", f"127.0.0.1:{port}", "leaky:app"]
    server = subprocess.Popen(words, cwd=directory, stderr=subprocess.DEVNULL)
    done = 0
    while done < 160:
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port)
            connection.request("GET", "/")
            connection.getresponse().read()
            done += 1
        except OSError:
            time.sleep(0.1)
        time.sleep(SECONDS / 160)
    children = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
    total = sum(truth.rollup("Pss_Anon", pid) for pid in ("self", server.pid, *map(int, children)))
    truth.tell(held__anon__peak=total)
    time.sleep(2)
    server.send_signal(signal.SIGTERM)
    server.wait()
