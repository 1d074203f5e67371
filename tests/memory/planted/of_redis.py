"""redis-server saves in the background (BGSAVE) while its keys are overwritten: pages are copied."""

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import time

import truth

SECONDS = float(os.environ.get("SECONDS", "8"))
KEYS, VALUE = 6000, 32 * 1024
with tempfile.TemporaryDirectory(dir=sys.argv[1]) as directory:
    place = os.path.join(directory, "redis.sock")  # noqa: PTH118  # text for a socket
    words = [
        "redis-server",
        "--port",
        "0",
        "--unixsocket",
        place,
        "--dir",
        directory,
        "--save",
        "",
        "--daemonize",
        "no",
    ]
    server = subprocess.Popen(
        [*words, "--rdb-key-save-delay", str(int(SECONDS * 1e6 / KEYS))], stdout=subprocess.DEVNULL
    )
    client = socket.socket(socket.AF_UNIX)
    for _ in range(200):
        with contextlib.suppress(OSError):
            client.connect(place)
            break
        time.sleep(0.05)
    answers = client.makefile("rb")

    def ask(*words: bytes) -> bytes:
        client.sendall(b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words))
        return answers.readline()

    for key in range(KEYS):
        ask(b"SET", b"key%d" % key, bytes(VALUE))
    time.sleep(SECONDS / 3)
    ask(b"BGSAVE")
    for key in range(KEYS):
        ask(b"SETRANGE", b"key%d" % key, b"0", b"x" * VALUE)
        time.sleep(SECONDS / 2 / KEYS)
    pids = [server.pid]
    with open(f"/proc/{server.pid}/task/{server.pid}/children") as file:  # noqa: PTH123  # /proc
        pids += [int(word) for word in file.read().split()]
    truth.tell(held__anon__peak=sum(truth.rollup("Pss_Anon", pid) for pid in [os.getpid(), *pids]))
    time.sleep(2)
    server.kill()
    server.wait()
    for pid in pids[1:]:
        with contextlib.suppress(OSError):
            os.kill(pid, 9)
    time.sleep(0.2)
