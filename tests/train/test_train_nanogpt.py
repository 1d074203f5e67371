"""The edits that docs/nanogpt.md teaches, made as it says on a script of nanoGPT's shape, and on nanoGPT's own."""

from __future__ import annotations

import contextlib
import io
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from tests.train.running import write_tokens

PAGE = Path(__file__).parents[2] / "docs" / "nanogpt.md"
SHAPED = Path(__file__).parent / "nanogpt_shaped.txt"
SMALL = "--n_layer=1 --n_head=2 --n_embd=16 --dropout=0.0 --dtype=float32 --compile=False --always_save_checkpoint=True"


def taught() -> list[str]:
    """The Python of the page: one line, imports, feed, fetch, entry, val feed."""
    return re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)


def with_one_line(script: str) -> str:
    return re.sub(r"^def get_batch\(split\):\n.*?\n    return x, y\n", lambda _: taught()[0], script, flags=re.M | re.S)


def with_feed(script: str) -> str:
    _, imports, feed, fetch, entry, _ = taught()
    script = script.replace("import torch\n", f"import torch\n{imports}", 1)
    script = re.sub(r"^checkpoint = None.*\n", lambda found: feed + found[0], script, flags=re.M)
    script, fetches = re.subn(r"X, Y = get_batch\('train'\).*\n", lambda _: fetch, script)
    script, entries = re.subn(r"^( +)(?=torch\.save\()", lambda found: found[1] + entry + found[1], script, flags=re.M)
    assert (fetches, entries) == (2, 1)
    return script


class Project:
    """A directory with a train.py and nanoGPT's data."""

    def __init__(self, directory: Path, script: str, words: str = "") -> None:
        self.directory, self.words = directory, words.split()
        data = directory / "data" / "made_up"
        data.mkdir(parents=True, exist_ok=True)
        write_tokens(data / "train.bin", 5000)
        write_tokens(data / "val.bin", 2000, seed=1)
        (directory / "train.py").write_text(script)

    def losses(self, *words: str) -> dict[int, str]:
        """What was printed for each iteration."""
        said = self.in_a_process(*words) if self.words else self.here(*words)
        return {int(step): loss for step, loss in re.findall(r"^iter (\d+): loss ([\d.]+)", said, re.M)}

    def in_a_process(self, *words: str) -> str:
        done = subprocess.run(
            [sys.executable, "train.py", *self.words, *words],
            cwd=self.directory,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=250,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    def here(self, *words: str) -> str:
        """In this process, which has imported torch: that takes five seconds, and our own script a tenth of one."""
        said = io.StringIO()
        with pytest.MonkeyPatch.context() as changed, contextlib.redirect_stdout(said):
            changed.chdir(self.directory)
            changed.setattr(sys, "argv", ["train.py", *words])
            runpy.run_path("train.py", run_name="__main__")
        return said.getvalue()


def project(tmp_path: Path, which: str, edit: str) -> Project:
    if which == "shaped":
        return Project(tmp_path, EDITS[edit](SHAPED.read_text()))
    checkout = os.environ.get("NANOGPT_DIR", "")
    if not (Path(checkout) / "train.py").is_file() or not checkout:
        pytest.skip("NOT TESTED: the edits on nanoGPT's own train.py; NANOGPT_DIR names no checkout of it")
    for name in ("model.py", "configurator.py"):
        (tmp_path / name).write_text((Path(checkout) / name).read_text())
    small = f"{SMALL} --device=cpu --batch_size=4 --block_size=16 --gradient_accumulation_steps=2 --eval_iters=2"
    words = f"{small} --eval_interval=4 --max_iters=8 --dataset=made_up"
    return Project(tmp_path, EDITS[edit]((Path(checkout) / "train.py").read_text()), words)


EDITS = {"none": lambda script: script, "one line": with_one_line, "feed": with_feed}
WHICH = pytest.mark.parametrize("which", ["shaped", pytest.param("real", marks=pytest.mark.slow)])


@WHICH
def test_the_one_line_changes_no_loss(tmp_path: Path, which: str) -> None:
    before = project(tmp_path, which, "none").losses()
    edited = project(tmp_path, which, "one line")
    assert "np.memmap" not in (tmp_path / "train.py").read_text()
    assert edited.losses() == before
    assert list(before) == list(range(9))


@WHICH
def test_with_a_feed_the_resumed_run_is_the_uninterrupted_one(tmp_path: Path, which: str) -> None:
    edited = project(tmp_path, which, "feed")
    whole = edited.losses("--out_dir=whole")
    first = edited.losses("--max_iters=4")
    resumed = edited.losses("--init_from=resume")
    assert first == {step: loss for step, loss in whole.items() if step <= 4}
    assert resumed == {step: loss for step, loss in whole.items() if step >= 4}


@WHICH
def test_without_a_feed_the_resumed_run_is_another_one(tmp_path: Path, which: str) -> None:
    """The control: the comparison above can fail."""
    plain = project(tmp_path, which, "none")
    whole = plain.losses("--out_dir=whole")
    plain.losses("--max_iters=4")
    assert plain.losses("--init_from=resume") != {step: loss for step, loss in whole.items() if step >= 4}


def test_the_val_feed_of_the_page_reads_every_token_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project(tmp_path, "shaped", "none")
    monkeypatch.chdir(tmp_path)
    words = {"data_dir": "data/made_up", "batch_size": 4, "block_size": 16, "seen": []}
    block = taught()[-1].replace("...", "seen.append(y.clone())")
    exec("import os, lowtide, lowtide.torch\n" + block, words)
    assert sum(y.numel() for y in words["seen"]) == 1999  # type: ignore[attr-defined]
