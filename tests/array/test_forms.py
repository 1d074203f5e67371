"""What objects look like when they are printed: short, and with what one wants to know."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import lowtide


def test_stats_of_many_columns_print_a_short_table(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(3000 * 162, dtype=np.float32).reshape(3000, 162))
    with lowtide.open(tmp_path / "x.npy") as array:
        lines = repr(array.stats()).splitlines()
        assert lines[0] == "<lowtide.ColumnStats of 162 columns>"
        assert lines[1].split() == ["column", "count", "mean", "std", "min", "max", "nan"]
        assert [line.split()[0] for line in lines[2:]] == ["0", "1", "2", "3", "...", "158", "159", "160", "161"]
        assert max(map(len, lines)) <= 100
        assert array.stats().mean.shape == (162,)
    np.save(tmp_path / "y.npy", np.arange(10))
    with lowtide.open(tmp_path / "y.npy") as numbers:
        assert repr(numbers.stats()).splitlines()[2].split() == ["0", "10", "4.5", "2.87228", "0", "9", "0"]


def test_a_budget_says_what_it_is_and_holds(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((4096, 64), np.float32))
    with lowtide.open(tmp_path / "x.npy", budget="4MiB") as array:
        assert repr(array.budget) == "<lowtide budget 4.00 MiB (stated): 0 B held, 0 B at most so far>"
        rows = next(array.chunks(1024))
        assert "256 KiB held" in repr(array.budget)
        assert rows.nbytes == 256 << 10
    with lowtide.open(tmp_path / "x.npy") as array:
        assert "(auto, grows with the batch)" in repr(array.budget)


def test_tokens_have_a_form_for_notebooks(tmp_path: Path) -> None:
    path = tmp_path / "<b>.bin"
    np.arange(1000, dtype=np.uint16).tofile(path)
    with lowtide.open_tokens(path, dtype="uint16", vocab=1000, eot=0) as tokens:
        shown = tokens._repr_html_()
        assert "1,000" in shown
        assert "vocab" in shown
        assert "&lt;b&gt;.bin" in shown
        assert "<b>" not in shown
        assert "part of" not in shown
        assert "part of" in tokens.split(val=0.1)[1]._repr_html_()


def test_what_is_imported_late_is_listed() -> None:
    assert {"mix", "watch", "Mixture", "torch", *lowtide.__all__} <= set(dir(lowtide))
