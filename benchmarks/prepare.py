"""Text to tokens beside the bare loops it is made of, and its memory; the text is this machine's own Python sources.

    .venv/bin/python -m benchmarks.prepare            # about three minutes
    .venv/bin/python -m benchmarks.prepare --large    # memory at 5 GB too

Speeds are ratios within one run, interleaved. Memory is Pss over all processes of a run, sampled from outside.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.measure import DIRECTORY, Figure, drop, interleaved, report, warm
from lowtide.corpus import verify
from lowtide.prepare import Request, Resources, prepare
from lowtide.prepare.tokenizers.encoders import hugging_face
from lowtide.prepare.tokenizers.vocabulary import load_vocabulary

TEXT = 100_000_000
SEPARATOR = b"<|document|>\n"
WORK = DIRECTORY / "prepare"
CORES = len(os.sched_getaffinity(0))


def sources(most: int) -> Iterator[bytes]:
    """Python sources of the standard library and the installed packages, again and again until there are ``most``."""
    places = [
        Path(place) for place in (sysconfig.get_path("stdlib"), *sys.path) if place.endswith(("3.11", "packages"))
    ]
    files = sorted({path for place in places for path in place.rglob("*.py") if path.stat().st_size})
    given = 0
    while True:
        for path in files:
            with contextlib.suppress(OSError, UnicodeDecodeError):
                text = path.read_bytes()
                text.decode()
                yield text
                given += len(text)
                if given >= most:
                    return


def made_jsonl(size: int) -> Path:
    path = WORK / f"text-{size}.jsonl"
    if not path.exists():
        with path.open("w") as file:
            for text in sources(size):
                file.write(json.dumps({"text": text.decode()}, ensure_ascii=False) + "\n")
    return path


def made_text(size: int) -> Path:
    path = WORK / f"text-{size}.txt"
    if not path.exists():
        with path.open("wb") as file:
            for text in sources(size):
                file.write(text + SEPARATOR)
    return path


def made_tokenizer(path: Path) -> Path:
    target = WORK / "tokenizer.json"
    if not target.exists():
        shutil.rmtree(WORK / "trained", ignore_errors=True)
        prepare([str(path)], WORK / "trained", Request(train_bpe=8192))
        shutil.copy(WORK / "trained" / "tokenizer.json", target)
    return target


def ours(path: Path, request: Request, resources: Resources | None = None) -> float:
    """Tokens of one run, read from and written to files."""
    shutil.rmtree(WORK / "out", ignore_errors=True)
    return prepare([str(path)], WORK / "out", request, resources or Resources()).tokens


BARE = """
import json, sys, time
import gigatoken
tokenizer = gigatoken.Tokenizer(sys.argv[2])
texts = [json.loads(line)["text"].encode() for line in open(sys.argv[1])]
batches, batch, size = [], [], 0
for text in texts:
    batch.append(text)
    size += len(text)
    if size > 32e6:
        batches.append(batch)
        batch, size = [], 0
batches.append(batch)
del texts
begun, tokens = time.perf_counter(), 0
for batch in batches:
    tokens += len(tokenizer.encode_batch(batch, parallel=True).layout.content.data)
print(tokens / (time.perf_counter() - begun))
"""


def bare_gigatoken(path: Path, tokenizer: Path) -> float:
    """Tokens/s of encode_batch on text in memory, in a fresh process with all cores, loading not counted."""
    run = subprocess.run(
        [sys.executable, "-c", BARE, str(path), str(tokenizer)], capture_output=True, text=True, check=True
    )
    return float(run.stdout)


def bare_tokenizers(path: Path, tokenizer: Path, most: int = 4_000_000) -> float:
    """Tokens/s of encode_batch_fast on text in memory with all cores."""
    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    library = hugging_face(load_vocabulary(str(tokenizer)))
    texts, size = [], 0
    with path.open() as file:
        for line in file:
            texts.append(json.loads(line)["text"])
            size += len(texts[-1])
            if size > most:
                break
    begun = time.perf_counter()
    found = library.encode_batch_fast(texts, add_special_tokens=False)
    return sum(len(one.ids) for one in found) / (time.perf_counter() - begun)


def bare_widen(path: Path) -> float:
    """Bytes of a read-widen-write loop, made durable as ours are."""
    buffer = bytearray(4 << 20)
    with path.open("rb", buffering=0) as source, (WORK / "bare.bin").open("wb", buffering=0) as target:
        while count := source.readinto(buffer):
            target.write(np.frombuffer(buffer, np.uint8, count).astype(np.uint16))
        os.fsync(target.fileno())
    return path.stat().st_size


def speed_figures(path: Path, text: Path) -> list[Figure]:
    tokenizer = made_tokenizer(path)
    for file in (path, text):
        warm(file)
    rates: dict[str, list[float]] = {name: [] for name in ("ours", "gigatoken", "tokenizers", "ray")}
    request = Request(tokenizer=str(tokenizer))
    for _ in range(3):
        begun = time.perf_counter()
        rates["ours"].append(ours(path, request) / (time.perf_counter() - begun))
        rates["gigatoken"].append(bare_gigatoken(path, tokenizer))
        rates["tokenizers"].append(bare_tokenizers(path, tokenizer))
    median = {name: float(np.median(values)) for name, values in rates.items() if values}
    widened = interleaved({"ours": lambda: text_bytes(text), "bare": lambda: bare_widen(text)}, rounds=3)
    return [
        Figure("tokens/s, files to shards / bare gigatoken", median["ours"], median["gigatoken"], "tokens/s", 0.6),
        Figure("tokens/s, files to shards / bare tokenizers", median["ours"], median["tokenizers"], "tokens/s", 20),
        Figure("bytes from .txt / read, widen, write", widened["ours"], widened["bare"], "bytes/s", 0.5),
    ]


def text_bytes(path: Path) -> float:
    ours(path, Request(separator=SEPARATOR.decode()))
    return path.stat().st_size


def engine_figures(path: Path) -> list[Figure]:
    """Ray on one node beside the local engine, its start not counted: a cluster outlives a run."""
    try:
        import ray
    except ModuleNotFoundError:
        print("NOT MEASURED: the Ray engine - ray is not installed", file=sys.stderr)
        return []
    request = Request(tokenizer=str(made_tokenizer(path)))
    ray.init(num_cpus=CORES, log_to_driver=False, include_dashboard=False)
    ways = {"ray": lambda: ours(path, request, Resources(engine="ray")), "local": lambda: ours(path, request)}
    rates = interleaved(ways, rounds=3, discard=1)
    ray.shutdown()
    return [Figure("tokens/s, Ray on one node / local", rates["ray"], rates["local"], "tokens/s", 0.7)]


def verify_figures(path: Path) -> list[Figure]:
    shutil.rmtree(WORK / "verified", ignore_errors=True)
    prepare([str(path)], WORK / "verified", Request(separator=SEPARATOR.decode(), shard_tokens=20_000_000))
    shards = sorted((WORK / "verified").glob("*.bin"))

    def cold(way: str) -> float:
        for shard in shards:
            drop(shard)
        if way == "verify":
            found = verify([WORK / "verified"])
            assert not found.faults
            return found.bytes
        for shard in shards:
            warm(shard)
        return sum(shard.stat().st_size for shard in shards)

    ways = {"verify": lambda: cold("verify"), "read": lambda: cold("read")}
    rates = interleaved(ways, rounds=5, discard=1)
    return [Figure("verify, cold / sequential read", rates["verify"], rates["read"], "bytes/s", 0.8)]


def peak(path: Path, tokenizer: Path) -> float:
    """MiB of Pss at most, over a run and all its processes."""
    shutil.rmtree(WORK / "out", ignore_errors=True)
    command = [sys.executable, "-m", "lowtide", "prepare", str(path), "-o", str(WORK / "out")]
    with subprocess.Popen([*command, "--tokenizer", str(tokenizer), "--json"], stdout=subprocess.DEVNULL) as process:
        most = [0.0]
        watcher = threading.Thread(target=_watch, args=(process, most))
        watcher.start()
        process.wait()
        watcher.join()
    return most[0]


def _watch(process: subprocess.Popen[bytes], most: list[float]) -> None:
    while process.poll() is None:
        total = 0
        for pid in (process.pid, *_children(process.pid)):
            with contextlib.suppress(OSError):
                rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
                total += next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))
        most[0] = max(most[0], total / 1024)
        time.sleep(0.05)


def _children(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def memory_figures(sizes: list[int]) -> list[Figure]:
    tokenizer = made_tokenizer(made_jsonl(TEXT))
    bound = Resources().budget_bytes(CORES) / 2**20 + 128 * CORES
    figures = []
    for size in sizes:
        path = made_jsonl(size)
        figures.append(
            Figure(f"peak Pss, {size / 1e9:g} GB of text", peak(path, tokenizer), 1, "MiB", bound, at_most=True)
        )
        if size > TEXT:
            path.unlink()
    return figures


def main() -> int:
    WORK.mkdir(parents=True, exist_ok=True)
    path, text = made_jsonl(TEXT), made_text(2 * TEXT)
    missed = report("Prepare: speed", [*speed_figures(path, text), *engine_figures(path), *verify_figures(text)])
    sizes = [TEXT, 10 * TEXT, *([50 * TEXT] if "--large" in sys.argv else [])]
    missed += report("Prepare: memory of all processes", memory_figures(sizes))
    shutil.rmtree(WORK, ignore_errors=True)
    return missed


if __name__ == "__main__":
    sys.exit(1 if main() else 0)
