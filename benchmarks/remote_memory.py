"""Peak memory of shuffled epochs over an object store, beside peers: ``python -m benchmarks.remote_memory``.

The same rows (``--size`` MiB, 2 KiB each) lie behind nginx, which answers S3's GET as well as anybody's: as one file of
bytes for Lowtide and fsspec, in their own formats for litdata and Mosaic Streaming, made by their own writers. Every
side is a program of its own, used as its documentation says, in batches of 512 rows for two epochs. Looked at every
20 ms from outside: anonymous and mapped memory of the whole tree of processes (``Pss``: what is shared counts once),
and what lies in its cache directory; bytes fetched are those of the server's log. ``--write`` puts the table into
docs/remote.md. Peers live in environments below build/, which `make remote` makes; one that is not there is named.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.remote import nginx
from lowtide.units import MIB

ROOT = Path(__file__).parents[1]
PEERS = ROOT / "build"
BEGIN, END = "<!-- memory: begin -->", "<!-- memory: end -->"
# Every program says "ready" after its imports and "epoch" after each epoch, and goes on when it is told to.
COMMON = """
import os, sys
port, place, cache, few = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
def say(what, *more):
    print(what, *more, flush=True)
    sys.stdin.readline()
"""
LOWTIDE = """
import lowtide, numpy
say("ready")
a = lowtide.open("s3://data/rows.bin", dtype="uint8", shape=(-1, 2048), cache_dir=cache, budget="64MiB",
                 remote={"endpoint": f"http://127.0.0.1:{port}"})
for epoch in range(2):
    seen = sum(rows.nbytes for rows in a.shuffled(512, seed=1, epoch=epoch, LOCALITY))
    say("epoch", seen)
"""
LITDATA = """
from litdata import StreamingDataset, StreamingDataLoader
from litdata.streaming import downloader
downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True  # it has no option for stores without TLS
if __name__ == "__main__":
    say("ready")
    options = {"endpoint_url": f"http://127.0.0.1:{port}", "aws_access_key_id": "a", "aws_secret_access_key": "b"}
    data = StreamingDataset("s3://data/litdata", cache_dir=cache, shuffle=True, storage_options=options)
    loader = StreamingDataLoader(data, batch_size=512)
    for epoch in range(2):
        seen = sum(rows.numel() * rows.element_size() for rows in loader)
        say("epoch", seen)
"""
# Mosaic's vision datasets, unused here, import torchvision, whose usual wheel does not fit torch for CPUs.
NO_VISION = """
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
for name in ("torchvision", "torchvision.datasets", "torchvision.transforms", "torchvision.transforms.functional"):
    sys.modules[name] = ModuleType(name)
    sys.modules[name].__spec__ = ModuleSpec(name, None)
sys.modules["torchvision.datasets"].VisionDataset = sys.modules["torchvision.datasets"].CIFAR10 = object
sys.modules["torchvision.transforms.functional"].to_tensor = None
"""
MOSAIC = (
    NO_VISION
    + """
os.environ["S3_ENDPOINT_URL"] = f"http://127.0.0.1:{port}"
from streaming import StreamingDataset
from torch.utils.data import DataLoader
if __name__ == "__main__":
    say("ready")
    data = StreamingDataset(remote="s3://data/mosaic", local=cache, shuffle=True, batch_size=512)
    loader = DataLoader(data, batch_size=512)
    for epoch in range(2):
        seen = sum(batch["x"].numel() for batch in loader)
        say("epoch", seen)
"""
)
FSSPEC = """
import random, fsspec
say("ready")
options = {"cache_storage": cache} if "CHAIN" else {}
chained = {"filecache": options} if options else {}
with fsspec.open("CHAINhttp://127.0.0.1:%s/data/rows.bin" % port, **chained) as file:
    size = file.size if hasattr(file, "size") and file.size else file.seek(0, 2)
    for epoch in range(2):
        order = list(range(size // 2048))
        random.Random(epoch).shuffle(order)
        seen = 0
        for row in order[:few] if not options else order:
            file.seek(row * 2048)
            seen += len(file.read(2048))
        say("epoch", seen)
"""
WRITE_LITDATA = """
import sys
from pathlib import Path
import numpy as np
from litdata import optimize
def row(number):
    return np.fromfile(sys.argv[1], np.uint8, 2048, offset=number * 2048)
if __name__ == "__main__":
    count = Path(sys.argv[1]).stat().st_size // 2048
    optimize(fn=row, inputs=list(range(count)), output_dir=sys.argv[2], chunk_bytes="64MB", num_workers=1)
"""
WRITE_MOSAIC = (
    NO_VISION
    + """
import numpy as np
from streaming import MDSWriter
rows = np.fromfile(sys.argv[1], np.uint8).reshape(-1, 2048)
with MDSWriter(out=sys.argv[2], columns={"x": "ndarray:uint8:2048"}) as out:
    for row in rows:
        out.write({"x": row})
"""
)


@dataclass
class Side:
    name: str
    python: Path
    program: str
    few: int = 0  # rows of an epoch, where a whole one would take hours


class Watching(threading.Thread):
    """The highest memory of a process and all below it, and of its cache directory."""

    def __init__(self, pid: int, cache: Path) -> None:
        super().__init__(daemon=True)
        self.pid, self.cache, self.memory, self.disk, self.over = pid, cache, 0, 0, False

    def run(self) -> None:
        while not self.over:
            self.memory = max(self.memory, sum(map(pss, tree(self.pid))))
            self.disk = max(self.disk, on_disk(self.cache))
            time.sleep(0.02)


def tree(pid: int) -> list[int]:
    found = [pid]
    for one in found:
        try:
            found += map(int, Path(f"/proc/{one}/task/{one}/children").read_text().split())
        except OSError:
            continue
    return found


def pss(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)


def on_disk(place: Path) -> int:
    total = 0
    for directory, _, names in os.walk(place):
        for name in names:
            try:
                total += os.stat(f"{directory}/{name}").st_blocks * 512  # noqa: PTH116
            except OSError:
                continue
    return total


def measured(side: Side, place: Path, port: int) -> str:
    cache, log = place / "cache", place / "access.log"
    environment = {
        **os.environ,
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "b",
        "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1",
        "PYTHONPATH": str(ROOT / "src") if "lowtide" in side.program else "",
        "HOME": str(place),
    }
    script = place / "side.py"
    script.write_text(COMMON + side.program)
    command = [str(side.python), str(script), str(port), str(place), str(cache), str(side.few)]
    problem = (place / "side.txt").open("w+")
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=problem, text=True, env=environment
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        watching, before, fetched, start = Watching(child.pid, cache), 0, [], 0
        for line in child.stdout:
            said = line.split()
            if not said or said[0] not in ("ready", "epoch"):
                continue
            if said[0] == "ready":
                start = sum(map(pss, tree(child.pid)))
                watching.start()
            sent = sum(map(int, log.read_text().split()))
            if said[0] == "epoch":
                fetched.append((sent - before) / int(said[1]))
            before = sent
            child.stdin.write("\n")
            child.stdin.flush()
        watching.over = True
    if len(fetched) != 2:
        problem.seek(0)
        reason = (problem.read().strip().splitlines() or ["nothing said"])[-1]
        return f"| {side.name} | did not run: {reason[:120]} | | | | |"
    shutil.rmtree(cache, ignore_errors=True)
    sizes = f"{start / MIB:.0f} | {watching.memory / MIB:.0f} | {watching.disk / MIB:.0f}"
    return f"| {side.name} | {sizes} | {fetched[0]:,.2f} | {fetched[1]:,.2f} |"


def sides(place: Path, data: Path) -> list[Side | str]:
    here = Path(sys.executable)
    found: list[Side | str] = [
        Side('Lowtide, `locality="64MiB"`', here, LOWTIDE.replace("LOCALITY", 'locality="64MiB"')),
        Side("Lowtide, full shuffle", here, LOWTIDE.replace("LOCALITY", "")),
    ]
    written = {"litdata": WRITE_LITDATA, "mosaic": WRITE_MOSAIC}
    for name, title, program in (("litdata", "litdata", LITDATA), ("mosaic", "Mosaic Streaming", MOSAIC)):
        python = PEERS / f"peers-{name}" / "bin" / "python"
        if not python.exists():
            found.append(f"| {title} | not installed here | | | | |")
            continue
        (place / "write.py").write_text(written[name])
        out = data.parent / name
        command = [python, place / "write.py", data, out]
        wrote = subprocess.run(command, capture_output=True, text=True, check=False, cwd=place)
        if wrote.returncode:
            found.append(f"| {title} | could not write its format: {wrote.stderr.strip().splitlines()[-1]} | | | | |")
            continue
        for file in (out, *out.rglob("*")):
            file.chmod(0o755)
        found.append(Side(title, python, program))
    python = PEERS / "peers-mosaic" / "bin" / "python"  # aiohttp, which fsspec needs for http, came with it
    if python.exists():
        found.append(
            Side("fsspec, its default cache, 256 rows of each epoch", python, FSSPEC.replace("CHAIN", ""), 256)
        )
        found.append(Side("fsspec, `filecache::`", python, FSSPEC.replace("CHAIN", "filecache::")))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=256, help="MiB")
    parser.add_argument("--write", action="store_true", help="into docs/remote.md")
    asked = parser.parse_args()
    if shutil.which("nginx") is None:
        print("NOT MEASURED: memory beside peers - nginx is not installed here")
        return 0
    lines = [
        f"{asked.size} MiB of rows of 2 KiB, two shuffled epochs in batches of 512; MiB:",
        "",
        "| | after its imports | peak, anonymous and mapped | local disk | fetched per byte, epoch 1 | epoch 2 |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    with tempfile.TemporaryDirectory(prefix="lowtide-remote-") as made:
        place = Path(made)
        place.chmod(0o755)
        data = place / "www" / "data" / "rows.bin"
        data.parent.mkdir(parents=True)
        with data.open("wb") as file:
            for _ in range(asked.size):
                file.write(os.urandom(MIB))
        with nginx(place) as port:
            for side in sides(place, data):
                lines.append(side if isinstance(side, str) else measured(side, place, port))
                print(lines[-1], flush=True)
    if asked.write:
        page = ROOT / "docs" / "remote.md"
        before, _, rest = page.read_text().partition(BEGIN)
        page.write_text(before + BEGIN + "\n" + "\n".join(lines) + "\n" + END + rest.partition(END)[2])
    return 0


if __name__ == "__main__":
    sys.exit(main())
