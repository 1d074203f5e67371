"""Killed at any moment, the same command goes on, and the bytes are those of a run that was never stopped."""

from __future__ import annotations

import errno
import os
import random
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.commands import called
from tests.prepare.conftest import as_bytes, documents_of, make_documents, run_cli, snapshot, write_jsonl

from lowtide.corpus.journal import WORK, Journal
from lowtide.errors import BudgetError, FormatError, StateError
from lowtide.prepare import Request, Resources, assemble, prepare
from lowtide.prepare.job import Status
from lowtide.prepare.tokenizers.bpe import tokenizer_json

COMMAND = [sys.executable, "-m", "lowtide", "prepare"]


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """About 13 MB in two files, one of them compressed: enough pieces to be killed between."""
    directory = tmp_path_factory.mktemp("many")
    texts = make_documents(1300, longest=2000)
    write_jsonl(directory / "a.jsonl", texts[:900])
    write_jsonl(directory / "b.jsonl.gz", texts[900:])
    return directory


@pytest.fixture(scope="module")
def settings(tokenizer: Path) -> Request:
    return Request(tokenizer=str(tokenizer), shard_tokens=300_000, val=0.1, dedup=True)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, many: Path, settings: Request) -> dict[str, bytes]:
    """What is left by preparing with these settings when nothing goes wrong."""
    directory = tmp_path_factory.mktemp("whole") / "out"
    prepare([str(many)], directory, settings, Resources(workers=2))
    return snapshot(directory)


def killed(many: Path, output: Path, settings: Request, after: int, wait: float) -> bool:
    """Prepare in a process that SIGKILL ends ``wait`` seconds after so many signs of progress; whether it did."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            prepare([str(many)], output, settings, Resources(workers=1), lambda _: (os.write(writing, b"."), None)[1])
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb", 0) as signs:
        while after and signs.read(1):
            after -= 1
    time.sleep(wait)
    os.kill(child, signal.SIGKILL)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


@pytest.mark.slow
def test_a_run_killed_again_and_again_gives_the_bytes_of_one_that_was_not(
    tmp_path: Path, many: Path, settings: Request, whole: dict[str, bytes]
) -> None:
    draw = random.Random(1)
    kills = [killed(many, tmp_path / "out", settings, after, draw.uniform(0, 0.1)) for after in (3, 1, 3)]
    prepare([str(many)], tmp_path / "out", settings, Resources(workers=1))
    assert any(kills), "none lived long enough to be killed"
    assert snapshot(tmp_path / "out") == whole


class StoppedError(Exception):
    """Stands for the power failing."""


@pytest.mark.parametrize("after", [1, 2, 3])
def test_a_run_stopped_after_any_block_goes_on_from_its_last_checkpoint(
    tmp_path: Path, many: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    request = Request(shard_tokens=1_500_000, val=0.2, dedup=True)
    monkeypatch.setattr(assemble, "OFTEN", 5_000_000)
    prepare([str(many)], tmp_path / "whole", request)
    seen = 0

    def stop(status: object) -> None:
        nonlocal seen
        seen += 1
        if seen > after + 2:
            raise StoppedError

    with pytest.raises(StoppedError):
        prepare([str(many)], tmp_path / "broken", request, progress=stop)
    finished = {name for name in snapshot(tmp_path / "broken") if name.endswith(".bin") and WORK not in name}
    before = {name: (tmp_path / "broken" / name).stat().st_mtime_ns for name in finished}
    prepare([str(many)], tmp_path / "broken", request)
    assert snapshot(tmp_path / "broken") == snapshot(tmp_path / "whole")
    assert {name: (tmp_path / "broken" / name).stat().st_mtime_ns for name in finished} == before, "redone"


def stopped(tmp_path: Path, path: Path, request: Request) -> None:
    """Leave an unfinished run with a finished shard in ``out``."""

    def stop(status: Status) -> None:
        if status.shards:
            raise StoppedError

    with pytest.raises(StoppedError):
        prepare([str(path)], tmp_path / "out", request, progress=stop)


SMALL = Request(shard_tokens=3)


def test_other_settings_are_refused_by_name(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", ["one", "two"])
    stopped(tmp_path, path, SMALL)
    with pytest.raises(StateError, match=r"expected --shard-tokens 3 as this run began with, got 50"):
        prepare([str(path)], tmp_path / "out", Request(shard_tokens=50))


def test_a_mistake_may_be_corrected_while_nothing_is_finished(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", ["one", "two"])
    with pytest.raises(FormatError, match="expected a field 'body'"):
        prepare([str(path)], tmp_path / "out", Request(field="body"))
    prepare([str(path)], tmp_path / "out")
    assert documents_of(tmp_path / "out") == as_bytes(["one", "two"])


def test_a_changed_input_is_refused_by_name(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", ["one", "two"])
    stopped(tmp_path, path, SMALL)
    write_jsonl(path, ["one", "two", "three"])
    with pytest.raises(StateError, match=r"a\.jsonl: expected the \d+ bytes this run began with"):
        prepare([str(path)], tmp_path / "out", SMALL)


def test_more_inputs_than_before_are_refused(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", ["one", "two"])
    stopped(tmp_path, path, SMALL)
    other = write_jsonl(tmp_path / "b.jsonl", ["three"])
    with pytest.raises(StateError, match="expected the 1 input files this run began with, got 2"):
        prepare([str(path), str(other)], tmp_path / "out", SMALL)


def test_another_tokenizer_under_the_same_name_is_refused(tmp_path: Path, tokenizer: Path) -> None:
    mine = tmp_path / "tokenizer.json"
    mine.write_bytes(tokenizer.read_bytes())
    path = write_jsonl(tmp_path / "a.jsonl", ["one", "two"])
    request = Request(tokenizer=str(mine), shard_tokens=3)
    stopped(tmp_path, path, request)
    mine.write_bytes(tokenizer.read_bytes() + b"\n")
    with pytest.raises(StateError, match="expected tokenizer"):
        prepare([str(path)], tmp_path / "out", request)


def test_a_directory_another_process_writes_is_refused_and_a_dead_one_s_lock_is_not(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", ["one", "two"])
    script = (
        "import sys, time; from pathlib import Path; from lowtide.corpus.journal import Journal\n"
        "with Journal(Path(sys.argv[1])).held(): print('held', flush=True); time.sleep(600)"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "out")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        done = called("prepare", path, "-o", tmp_path / "out")
        assert done.returncode == 1
        assert f"process {holder.pid} is writing" in done.stderr
        os.kill(holder.pid, signal.SIGKILL)
    prepare([str(path)], tmp_path / "out")
    assert documents_of(tmp_path / "out") == as_bytes(["one", "two"])


def test_a_directory_with_other_files_is_refused(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", ["one"])
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.doc").write_text("mine")
    with pytest.raises(StateError, match=r"expected an empty directory .* got thesis\.doc"):
        prepare([str(path)], tmp_path / "out")
    assert snapshot(tmp_path / "out") == {"thesis.doc": b"mine"}


def test_a_finished_corpus_is_left_alone_and_another_request_refused(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", ["one", "two"])
    prepare([str(path)], tmp_path / "out")
    before = snapshot(tmp_path / "out")
    assert prepare([str(path)], tmp_path / "out").was_complete
    with pytest.raises(StateError, match=r"expected val 0\.0 as its corpus has, got 0\.5"):
        prepare([str(path)], tmp_path / "out", Request(val=0.5))
    write_jsonl(path, ["one", "three"])
    with pytest.raises(StateError, match="expected the 1 files"):
        prepare([str(path)], tmp_path / "out")
    assert snapshot(tmp_path / "out") == before


@pytest.mark.slow
def test_a_full_disk_is_one_clear_line_and_the_run_goes_on_after_space_is_made(tmp_path: Path, many: Path) -> None:
    def small_files() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (5_000_000, resource.RLIM_INFINITY))

    words = ("prepare", many, "-o", tmp_path / "out")
    done = run_cli(*words, preexec_fn=small_files)
    assert done.returncode == 1
    assert len(done.stderr.strip().splitlines()) == 1
    assert os.strerror(errno.EFBIG) in done.stderr
    assert "run the same command again" in done.stderr
    assert not list((tmp_path / "out").glob("*.bin")), "nothing half-written has a final name"
    again = called(*words)
    assert again.returncode == 0, again.stderr
    prepare([str(many)], tmp_path / "whole")
    assert snapshot(tmp_path / "out") == snapshot(tmp_path / "whole")


def test_a_full_table_of_seen_documents_stops_the_run_and_a_larger_one_goes_on(tmp_path: Path) -> None:
    texts = make_documents(1000, longest=10)
    path = write_jsonl(tmp_path / "a.jsonl", [*texts, *texts])
    request = Request(dedup=True)
    with pytest.raises(BudgetError, match=r"--dedup: expected at most 192 documents .* Run it again with --dedup"):
        prepare([str(path)], tmp_path / "out", request, Resources(dedup_memory="4KiB"))
    found = prepare([str(path)], tmp_path / "out", request, Resources(dedup_memory="1MiB"))
    assert (found.documents, found.tally["duplicates"]) == (1000, 1000)


@pytest.mark.slow
def test_a_worker_that_is_killed_is_replaced(
    tmp_path: Path, many: Path, settings: Request, whole: dict[str, bytes]
) -> None:
    ended: list[int] = []

    def kill_one(status: Status) -> None:
        if status.tokens and not ended:
            ended.append(_workers()[0])
            os.kill(ended[0], signal.SIGKILL)

    prepare([str(many)], tmp_path / "out", settings, Resources(workers=2), progress=kill_one)
    assert ended
    assert snapshot(tmp_path / "out") == whole


@pytest.mark.slow
def test_workers_start_while_the_encoder_is_chosen_and_are_replaced_if_they_die_before_they_know_it(
    tmp_path: Path, many: Path, settings: Request, whole: dict[str, bytes]
) -> None:
    ended: list[int] = []

    def kill_all(status: Status) -> None:
        if status.stage == "tokenizer":
            ended.extend(_workers())
            for worker in ended:
                os.kill(worker, signal.SIGKILL)

    prepare([str(many)], tmp_path / "out", settings, Resources(workers=2), progress=kill_all)
    assert len(ended) == 2
    assert snapshot(tmp_path / "out") == whole


def test_a_run_that_is_refused_while_its_workers_start_leaves_none(tmp_path: Path, many: Path) -> None:
    met: list[int] = []
    path = tmp_path / "tokenizer.json"
    path.write_text(tokenizer_json([("t", "h"), ("a", "n"), ("t", "h")]))
    with pytest.raises(FormatError, match="expected each merge once"):
        prepare(
            [str(many)],
            tmp_path / "out",
            Request(tokenizer=str(path)),
            Resources(workers=2),
            lambda _: met.extend(_workers()),
        )
    assert len(met) == 2
    assert _workers() == []


def _workers() -> list[int]:
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    return [int(pid) for pid in children if b"lowtide.prepare.worker" in _command(pid)]


def _command(pid: str) -> bytes:
    """Its command line, which is empty for a moment after it was started."""
    while True:
        try:
            found, status = Path(f"/proc/{pid}/cmdline").read_bytes(), Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            return b""
        if found or status.rpartition(")")[2].split()[0] in "ZX":
            return found
        time.sleep(0.001)


@pytest.mark.slow
def test_workers_end_when_the_run_is_killed(tmp_path: Path, many: Path, tokenizer: Path) -> None:
    command = [*COMMAND, str(many), "-o", str(tmp_path / "out"), "--tokenizer", str(tokenizer), "--workers", "2"]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        workers: list[int] = []
        deadline = time.monotonic() + 120
        while len(workers) < 2 and process.poll() is None and time.monotonic() < deadline:
            workers = [int(pid) for pid in children.read_text().split() if b"prepare.worker" in _command(pid)]
        process.kill()
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and any(b"prepare.worker" in _command(str(pid)) for pid in workers):
        time.sleep(0.05)
    assert len(workers) == 2
    assert not any(b"prepare.worker" in _command(str(pid)) for pid in workers)
    assert (tmp_path / "out" / WORK).is_dir()
    with Journal(tmp_path / "out").held():
        pass  # the dead run's lock blocks nobody
