"""Text to tokens beside the tokenizer engine itself; the text is this machine's own Python sources.

    .venv/bin/python -m benchmarks.prepare            # about three minutes

Speeds are ratios within one run, interleaved, from files to shards on disk, with the start of every process. The engine
has its text in memory and is loaded before its clock starts; one worker stands beside one of its threads, two beside
two. Every 250 MB have new words, as text has that is not repeated, for our cache and for its own. Because starting
weighs more the smaller a corpus is, it has a line (a run over one short document), a second line of speed leaves it
out, a third says what as many loaded processes reach that read, parse, encode and write without order, checks or
durability, one step after the other (a worker reads while it encodes), and a fourth stands beside the engine reading
the same files itself, into memory. Memory is measured by `benchmarks.prepare_memory`.
"""

from __future__ import annotations

import compileall
import contextlib
import json
import os
import shutil
import string
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import lowtide
from benchmarks.measure import DIRECTORY, Figure, drop, interleaved, report, warm
from lowtide.corpus import verify
from lowtide.prepare import Request, Resources, prepare
from lowtide.prepare.processes import ENVIRONMENT
from lowtide.prepare.tokenizers.encoders import hugging_face
from lowtide.prepare.tokenizers.vocabulary import load_vocabulary

TEXT = 100_000_000
LARGE = 750_000_000
BASE = 250_000_000  # bytes of text before its letters are turned
SEPARATOR = b"<|document|>\n"
WORK = DIRECTORY / "prepare"
CORES = len(os.sched_getaffinity(0))


def sources(most: int) -> Iterator[bytes]:
    """Python sources of the standard library and the installed packages, over and over until there are ``most``. Every
    `BASE` bytes, letters are turned by one more place, so that most words are new."""
    places = [
        Path(place) for place in (sysconfig.get_path("stdlib"), *sys.path) if place.endswith(("3.11", "packages"))
    ]
    files = sorted({path for place in places for path in place.rglob("*.py") if path.stat().st_size})
    given, letters = 0, string.ascii_lowercase
    while True:
        for path in files:
            with contextlib.suppress(OSError, UnicodeDecodeError):
                text = path.read_bytes()
                text.decode()
                turn = given // BASE % 26
                yield text.translate(bytes.maketrans(letters.encode(), (letters[turn:] + letters[:turn]).encode()))
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


def made_short() -> Path:
    """Documents of 100 bytes."""
    path = WORK / "short.jsonl"
    if not path.exists():
        with path.open("w") as file:
            for text in sources(2 * TEXT):
                for at in range(0, len(text), 100):
                    part = text[at : at + 100].decode("utf-8", "ignore")
                    file.write(json.dumps({"text": part}, ensure_ascii=False) + "\n")
    return path


def made_long() -> list[Path]:
    """Three files of 100 MB, each one document."""
    paths = [WORK / f"long-{number}.txt" for number in range(3)]
    texts = sources(3 * BASE)
    for path in paths:
        if not path.exists():
            with path.open("wb") as file:
                while file.tell() < TEXT:
                    file.write(next(texts))
    return paths


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
file, threads, *paths = sys.argv[1:]
whole, parallel, end = paths[0].endswith(".txt"), threads != "1", b"<|endoftext|>"
blocks, block, size = [], [], 0
for path in paths:
    with open(path, "rb") as lines:
        for text in [lines.read()] if whole else (json.loads(line)["text"].encode() for line in lines):
            block.append(text)
            size += len(text)
            if size > 32e6:
                blocks.append(block)
                block, size = [], 0
blocks.append(block)
joined = [end.join(block) for block in blocks]
total = sum(len(text) for block in blocks for text in block)

def batches(tokenizer):
    for block in blocks:
        tokenizer.encode_batch(block, parallel=parallel)

def buffers(tokenizer):
    for block in joined:
        tokenizer.encode_batch(gigatoken.BytesSource(block, separator=end), parallel=parallel)

def calls(tokenizer):
    for block in joined:
        for at in range(0, len(block), 1 << 20):
            tokenizer.encode(block[at : at + (1 << 20)])

def files(tokenizer):
    source = gigatoken.TextFileSource if whole else gigatoken.JsonlFileSource
    tokenizer.backend.encode_files(source(paths), parallel=parallel)

print("ready", flush=True)
for names in sys.stdin:
    found = {}
    for way in map(globals().get, names.split()):
        tokenizer = gigatoken.Tokenizer(file)
        tokenizer.encode_batch([b"loads what it needs"], parallel=parallel)
        begun = time.perf_counter()
        way(tokenizer)
        found[way.__name__] = total / (time.perf_counter() - begun)
    print(json.dumps(found), flush=True)
"""


class BareGigatoken:
    """A process that has the text in memory and encodes it when asked."""

    def __init__(self, paths: list[Path], tokenizer: Path, threads: int) -> None:
        words = [sys.executable, "-c", BARE, str(tokenizer), str(threads), *map(str, paths)]
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._told()

    def rate(self, *ways: str) -> float:
        """Bytes of text per second by the best of these ways."""
        assert self._process.stdin is not None
        self._process.stdin.write(" ".join(ways) + "\n")
        self._process.stdin.flush()
        return float(max(json.loads(self._told()).values()))

    def close(self) -> None:
        self._process.communicate()

    def _told(self) -> str:
        assert self._process.stdout is not None
        if not (line := self._process.stdout.readline()):
            raise RuntimeError(f"bare gigatoken ended with {self._process.wait()}")
        return line


LEAST = """
import json, os, sys
import numpy as np
from gigatoken.gigatoken_rs import BytesSource, PadTruncate, load_hf_json
from lowtide.engine import engine
file, output, part, parts, *paths = sys.argv[1:]
content = json.load(open(file))
end, block, none = b"<|endoftext|>", 1 << 20, np.empty(0, np.uint32)
fds = [os.open(path, os.O_RDONLY) for path in paths]
blocks = [(fd, at) for fd in fds for at in range(0, os.fstat(fd).st_size, block)][int(part) :: int(parts)]
while True:
    tokenizer, options, total = load_hf_json(json.dumps(content)), PadTruncate(0), 0
    print("ready", flush=True)
    if not sys.stdin.readline():
        break
    with open(f"{output}/{part}.bin", "wb", buffering=0) as target:
        for fd, at in blocks:
            text = os.pread(fd, block, at)
            if paths[0].endswith(".jsonl"):
                text = text[text.find(b"\\n") + 1 : text.rfind(b"\\n")]  # lines that cross a border are left out
                found = engine("native").joined_texts(text, b"text", b"\\n", end, none)
                text = b"" if found is None else found[0]  # inside of a longer line
            rows, _ = tokenizer.encode_batch_padded(BytesSource(text), options, parallel=False)
            target.write(rows.reshape(-1).astype(np.uint16))
            total += len(text)
    print(total, flush=True)
"""


class LeastProcesses:
    """Processes that are loaded already and do only what must be done when asked: read, parse, encode, write. No
    order, documents, checks of ids or text, checksums or bounds, and nothing is made durable."""

    def __init__(self, paths: list[Path], tokenizer: Path, count: int) -> None:
        (WORK / "least").mkdir(exist_ok=True)
        words = [sys.executable, "-c", LEAST, str(tokenizer), str(WORK / "least")]
        self._processes = [
            subprocess.Popen(
                [*words, str(part), str(count), *map(str, paths)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=os.environ | ENVIRONMENT,
            )
            for part in range(count)
        ]

    def rate(self) -> float:
        """Bytes of text per second."""
        self._told()
        begun = time.perf_counter()
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        return sum(map(int, self._told())) / (time.perf_counter() - begun)

    def close(self) -> None:
        for process in self._processes:
            process.communicate()

    def _told(self) -> list[str]:
        return [process.stdout.readline() for process in self._processes if process.stdout is not None]


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
            target.write(np.frombuffer(buffer, np.uint8, count).astype(np.uint16).data)
        os.fsync(target.fileno())
    return path.stat().st_size


def timed(paths: list[Path], tokenizer: Path, workers: int) -> tuple[int, float]:
    """Bytes of text and seconds of one run."""
    shutil.rmtree(WORK / "out", ignore_errors=True)
    begun = time.perf_counter()
    made = prepare(
        [str(path) for path in paths], WORK / "out", Request(tokenizer=str(tokenizer)), Resources(workers=workers)
    )
    return made.tally["text_bytes"], time.perf_counter() - begun


def engine_rates(paths: list[Path], tokenizer: Path, workers: int, rounds: int = 3) -> list[float]:
    """Bytes of text per second, medians of rounds in turn: ours from files to shards, the same without starting, and
    the engine's best with text in memory: buffers with a separator beside lists of documents or, on one thread, calls
    of `encode` with 1 MiB, which its documentation does not praise. Then the engine's with files, from one round, the
    seconds of starting, and what processes reach that do nothing but what must be done."""
    short = WORK / "one.txt"
    short.write_text("one short document\n")
    rates, files = [], 0.0
    bare, least = BareGigatoken(paths, tokenizer, workers), LeastProcesses(paths, tokenizer, workers)
    for path in paths:
        warm(path)
    for _ in range(rounds):
        _, start = timed([short], tokenizer, workers)
        size, took = timed(paths, tokenizer, workers)
        memory = bare.rate("buffers", "calls" if workers == 1 else "batches")
        files = files or bare.rate("files")
        rates.append((size / took, size / (took - start), memory, files, start, least.rate()))
    bare.close()
    least.close()
    return [float(np.median(column)) for column in zip(*rates, strict=True)]


def speed_figures() -> list[Figure]:
    usual, text = made_jsonl(LARGE), made_text(2 * TEXT)
    tokenizer = made_tokenizer(usual)
    figures = []
    for workers in (2, 1):
        starts = []
        for name, paths in (("usual", [usual]), ("100 bytes", [made_short()]), ("100 MB", made_long())):
            whole, steady, memory, files, start, least = engine_rates(paths, tokenizer, workers)
            starts.append(start)
            what = f"{name} per document, workers {workers}"
            figures.append(Figure(f"prepare / bare gigatoken, {what}", whole, memory, "bytes/s", 0.75))
            figures.append(Figure("the same, its start left out", steady, memory, "bytes/s", None))
            figures.append(Figure("read, parse, encode, write, nothing else", least, memory, "bytes/s", None))
            figures.append(
                Figure("prepare without start / gigatoken reading the files", steady, files, "bytes/s", None)
            )
        figures.append(Figure(f"start of prepare, workers {workers}", float(np.median(starts)), 1, "s", None))
    begun = time.perf_counter()
    tokens = ours(usual, Request(tokenizer=str(tokenizer))) / (time.perf_counter() - begun)
    slow = bare_tokenizers(usual, tokenizer)
    figures.append(Figure("prepare / bare tokenizers", tokens, slow, "tokens/s", 20))
    widened = interleaved({"ours": lambda: text_bytes(text), "bare": lambda: bare_widen(text)}, rounds=3)
    figures.append(Figure("bytes from .txt / read, widen, write", widened["ours"], widened["bare"], "bytes/s", 0.5))
    return figures


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

    def verified() -> float:
        found = verify([WORK / "verified"])
        assert not found.faults
        return found.bytes

    def read() -> float:
        for shard in shards:
            warm(shard)
        return sum(shard.stat().st_size for shard in shards)

    def dropped() -> None:
        for shard in shards:
            drop(shard)

    rates = interleaved({"verify": verified, "read": read}, rounds=5, discard=1, before=dropped)
    return [Figure("verify, cold / sequential read", rates["verify"], rates["read"], "bytes/s", 0.8)]


def main() -> int:
    WORK.mkdir(parents=True, exist_ok=True)
    # As an installer does: else every worker compiles our sources where Python may not keep what it compiled.
    compileall.compile_dir(Path(lowtide.__file__).parent, quiet=1)
    figures = [*speed_figures(), *engine_figures(made_jsonl(LARGE)), *verify_figures(made_text(2 * TEXT))]
    missed = report("Prepare: speed", figures)
    shutil.rmtree(WORK, ignore_errors=True)
    return missed


if __name__ == "__main__":
    sys.exit(1 if main() else 0)
