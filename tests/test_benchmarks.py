"""Benchmarks and the scripts that draw pictures keep up with what they measure: all of them can be imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
from benchmarks.prepare_memory import growth

ROOT = Path(__file__).resolve().parents[1]


def test_every_benchmark_finds_what_it_imports() -> None:
    files = sorted((ROOT / "benchmarks").rglob("*.py"))
    names = [".".join(file.relative_to(ROOT).with_suffix("").parts) for file in files if file.stem != "__main__"]
    assert len(names) > 20
    code = f"import importlib\nfor name in {names!r}: importlib.import_module(name)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_growth_of_prepare_is_a_leak_and_not_where_the_teeth_of_two_workers_stand() -> None:
    looks = np.arange(400)
    for phase in range(0, 70, 5):
        teeth = [np.floor((looks + shift) % period / period * 5) * 8 for period, shift in ((61, 0), (70, phase))]
        seen = np.stack([looks * 1000, 60 + 0 * looks, *teeth], axis=1).astype(np.int64) << np.array([0, 20, 20, 20])
        flat = growth(seen)
        seen[:, 2] += looks * (40 << 20) // 399
        assert abs(flat) < 8 << 20
        assert abs(growth(seen) - flat - (32 << 20)) < 1 << 16
