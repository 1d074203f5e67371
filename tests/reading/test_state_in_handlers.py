"""A signal handler that saves the state while a batch is being read: what Slurm and Kubernetes users write. It never
waits for the batch, and what it saved goes on exactly where the caller was."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tests.storage.processes import answer_of

SAVING = """
    path, kind, engine = sys.argv[1:4]
    def opened():
        if kind in ("feed", "mixture"):
            tokens = lowtide.open_tokens(path, dtype="uint16", engine=engine, cache="drop", budget="16MiB")
            if kind == "feed":
                return tokens.batches(64, length=255, seed=3)
            train, val = tokens.split(val=0.4)
            return lowtide.mix({"a": (train, 0.5), "b": (val, 0.5)}).batches(64, length=255, seed=3)
        array = lowtide.open(path, dtype="uint16", shape=(-1, 256), engine=engine, cache="drop", budget="16MiB")
        if kind == "together":
            array = lowtide.together(array, array, budget="32MiB")
        return array.shuffled(64, seed=3, epochs=None)

    def first(batch):
        return batch if isinstance(batch, np.ndarray) else batch[0]

    batches, saved = opened(), []
    def save(*_):
        saved.append((batches.position, batches.state_dict()))
        repr(batches)
    signal.signal(signal.SIGALRM, save)
    seen, chance = {}, np.random.default_rng(1)
    while len(saved) < 100 or len(seen) < 100:
        at = batches.position
        signal.setitimer(signal.ITIMER_REAL, chance.uniform(1e-5, 2e-3))  # once: a handler must not interrupt itself
        seen[at] = int(first(next(batches)).sum())
        drop_page_cache(path)
    signal.setitimer(signal.ITIMER_REAL, 0)
    again, wrong = opened(), 0
    for position, state in saved[::10]:
        assert position == state.get("rows", state.get("position"))
        again.load_state_dict(json.loads(json.dumps(state)))
        assert again.position == position
        if position in seen:
            wrong += int(first(next(again)).sum()) != seen[position]
    print(json.dumps([len(saved), len(seen), wrong]))
"""


@pytest.mark.parametrize("engine", ["native", "python"])
@pytest.mark.parametrize("kind", ["feed", "rows", "mixture", "together"])
def test_a_state_saved_in_a_handler_while_a_batch_is_read_is_the_callers(
    disk_path: Path, kind: str, engine: str
) -> None:
    path = disk_path / "numbers.u16"
    np.random.default_rng(5).integers(0, 50_000, 1 << 20).astype(np.uint16).tofile(path)
    if engine == "native":
        pytest.importorskip("lowtide.engine._core", reason="NOT TESTED: the native engine - it was not built")
    saved, seen, wrong = json.loads(answer_of(SAVING, path, kind, engine))
    assert saved >= 100
    assert seen >= 100
    assert wrong == 0
