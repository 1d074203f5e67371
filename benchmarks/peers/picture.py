"""docs/pictures/comparison.png: bars of warm and cold windows per second, and the memory each loader held."""

from __future__ import annotations

from typing import Any

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt

from benchmarks.peers.environments import ROOT

PICTURE = ROOT / "docs" / "pictures" / "comparison.png"
OURS, OTHERS, LIMIT = ("#0b5394", "#6fa8dc"), ("#7f6000", "#d5a44c"), ("#555555", "#aaaaaa")
MIB = 1 << 20


def draw(document: dict[str, Any]) -> None:
    rows = {name: row for name, row in document["peers"].items() if "warm" in row and "cold" in row}
    names = sorted(rows, key=lambda name: rows[name]["cold"]["windows"])
    titles = [rows[name]["title"].replace("`", "") for name in names]
    figure, (speed, memory) = plt.subplots(
        1, 2, figsize=(11, 0.42 * len(names) + 1.4), sharey=True, width_ratios=(3, 2)
    )
    for at, name in enumerate(names):
        dark, light = OURS if name.startswith("Lowtide") else LIMIT if name == "BareC" else OTHERS
        warm, cold = rows[name]["warm"], rows[name]["cold"]
        speed.barh(at + 0.2, warm["windows"], 0.38, color=light)
        speed.barh(at - 0.2, cold["windows"], 0.38, color=dark)
        for shift, figure_of in ((0.2, warm), (-0.2, cold)):
            speed.text(figure_of["windows"] * 1.08, at + shift, f"{figure_of['windows']:,.0f}", va="center", fontsize=7)
        anon, mapped = (max(warm[kind], cold[kind]) / MIB for kind in ("anon", "mapped"))
        memory.barh(at + 0.2, max(anon, 0.5), 0.38, color=dark)
        memory.barh(at - 0.2, max(mapped, 0.5), 0.38, color=light)
        for shift, size in ((0.2, anon), (-0.2, mapped)):
            memory.text(max(size, 0.5) * 1.08, at + shift, f"{size:,.0f}", va="center", fontsize=7)
    speed.set_yticks(range(len(names)), titles, fontsize=9)
    speed.set_xscale("log")
    speed.set_xlim(left=100, right=5e6)
    speed.set_ylim(-0.6, len(names) - 0.4)
    speed.set_xlabel("windows of 1,024 tokens per second; light: warm, dark: cold", fontsize=9)
    memory.set_xscale("log")
    memory.set_xlim(left=0.5, right=6e3)
    memory.set_xlabel("MiB held at most; dark: own memory, light: mapped", fontsize=9)
    for axis in (speed, memory):
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(axis="x", alpha=0.25)
        axis.set_axisbelow(True)
    figure.suptitle(
        "Shuffled windows from 1 GiB of tokens: Lowtide (blue), a bare C loop (grey) and its peers", fontsize=11
    )
    figure.tight_layout()
    PICTURE.parent.mkdir(exist_ok=True)
    figure.savefig(PICTURE, dpi=130)
    plt.close(figure)
