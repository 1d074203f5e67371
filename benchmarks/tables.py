"""Write benchmarks/results/*.json into docs/benchmarks.md: no figure in the prose is typed by hand."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.measure import RESULTS

PAGE = Path(__file__).parent.parent / "docs" / "benchmarks.md"
HEAD = """# Benchmarks

Written by `make bench` from `benchmarks/results/`; nothing here is typed by hand. Each figure stands beside its
baseline - the rival at its best, used as its documentation says - measured in the same run, in turn, as a median over
rounds. The machines these run on are shared and noisy: compare the two columns of a line, not lines of different runs.
*asked* is what we ask of ourselves; a line that misses it says so.
"""


def plain(number: float) -> str:
    """Four digits that count, and no exponent: 764,800, not 7.648e+05."""
    rounded = float(f"{number:.4g}")
    return f"{rounded:,.0f}" if abs(rounded) >= 1000 else f"{number:.4g}"


def table(document: dict) -> str:
    lines = [f"## {document['title']}", ""]
    about = ("date", "cpu", "kernel", "python", "numpy")
    lines += [", ".join(f"{name} {document[name]}" for name in about), ""]
    lines += ["| what | ours | baseline | ratio | asked |", "|---|---|---|---|---|"]
    for figure in document["figures"]:
        if figure["unit"] == "B/s":
            figure |= {"ours": figure["ours"] / 2**30, "baseline": figure["baseline"] / 2**30, "unit": "GiB/s"}
        sign = "at most" if figure["at_most"] else "at least"
        asked = "" if figure["wanted"] is None else f"{sign} {figure['wanted']:g}"
        bad = figure["wanted"] is not None and (
            figure["ours"] > figure["wanted"] if figure["at_most"] else figure["ratio"] < figure["wanted"]
        )
        baseline = "" if figure["at_most"] else plain(figure["baseline"])
        ratio = "" if figure["at_most"] else f"{figure['ratio']:.2f}x"
        ours = f"{plain(figure['ours'])} {figure['unit']}"
        lines.append(f"| {figure['what']} | {ours} | {baseline} | {ratio} | {asked}{' **missed**' if bad else ''} |")
    return "\n".join(lines)


def main() -> None:
    documents = [json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))]
    kept = [document for document in documents if "figures" in document]
    PAGE.write_text(HEAD + "\n" + "\n\n".join(table(document) for document in kept) + "\n")
    print(f"wrote {PAGE}")


if __name__ == "__main__":
    main()
