"""docs/comparison.md from benchmarks/results/peers.json: the tables, with the best of each column in bold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.peers.environments import ROOT

PAGE = ROOT / "docs" / "comparison.md"
MIB = 1 << 20
LIMIT_ROW = "BareC"  # shown, but no loader: it wins nothing

Row = dict[str, Any]


@dataclass(frozen=True)
class Column:
    """A heading, what stands in a cell, and the number by which cells are compared (None: not compared)."""

    heading: str
    text: Callable[[Row], str]
    number: Callable[[Row], float | None] = lambda row: None
    highest: bool = False


def best(rows: dict[str, Row], column: Column) -> set[str]:
    """Those whose cell reads like the best one's: what is rounded away decides nothing."""
    numbers = {name: column.number(row) for name, row in rows.items() if name != LIMIT_ROW}
    known = {name: number for name, number in numbers.items() if number is not None}
    if not known:
        return set()
    winner = (max if column.highest else min)(known, key=lambda name: known[name])
    return {name for name in known if column.text(rows[name]) == column.text(rows[winner])}


def table(rows: dict[str, Row], columns: Sequence[Column]) -> str:
    winners = {column.heading: best(rows, column) for column in columns}
    lines = [["", *(column.heading for column in columns)], ["---", *("---" for _ in columns)]]
    for name, row in rows.items():
        cells = [(column.text(row), name in winners[column.heading]) for column in columns]
        lines.append([row["title"], *(f"**{text}**" if won else text for text, won in cells)])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _of(temperature: str, key: str) -> Callable[[Row], float | None]:
    return lambda row: row.get(temperature, {}).get(key)


def _highest(key: str) -> Callable[[Row], float | None]:
    def number(row: Row) -> float | None:
        found = [row[each][key] for each in ("warm", "cold") if each in row]
        return max(found) if found else None

    return number


def _shown(number: Callable[[Row], float | None], form: str, scale: float = 1) -> Callable[[Row], str]:
    def text(row: Row) -> str:
        value = number(row)
        return "failed" if value is None else format(value / scale, form)

    return text


def _numbers(
    heading: str, number: Callable[[Row], float | None], form: str, scale: float = 1, *, highest: bool = False
) -> Column:
    return Column(heading, _shown(number, form, scale), number, highest)


def _processor(row: Row) -> float | None:
    """Seconds: a loader that waits uses few cores, but not for that reason less of them."""
    warm = row.get("warm")
    return warm["cores"] / warm["windows"] if warm and warm["windows"] else None


def _cached(row: Row) -> float | None:
    """Bytes left in the page cache for each useful byte of the cold run."""
    cold = row.get("cold")
    return cold["cached"] / cold["useful"] if cold and cold.get("useful") else None


def _resume(row: Row) -> str:
    if row["resumes"] == "-":
        return "none"
    if "at_middle" not in row:
        return str(row.get("resume", "failed"))
    times = f"{1000 * row['at_start']:,.0f} / {1000 * row['at_middle']:,.0f} ms"
    hand = ", by hand" if row["resumes"] == "by hand" else ""
    return f"{row['resume']}{hand}: {times}"


def _ranks(row: Row) -> str:
    if row["resumes"] == "-":
        return "none"
    return str(row.get("ranks", "failed")) + (", by hand" if row["resumes"] == "by hand" else "")


SPEED = [
    Column("shuffles", lambda row: row["shuffles"]),
    _numbers("warm, windows/s", _of("warm", "windows"), ",.0f", highest=True),
    _numbers("cold, windows/s", _of("cold", "windows"), ",.0f", highest=True),
    _numbers("read from the device per useful byte, cold", _of("cold", "read"), ".1f"),
    _numbers("processor time per window, warm, us", _processor, ",.1f", 1e-6),
    Column("cores, warm", _shown(_of("warm", "cores"), ".2f")),
    Column("cores, cold", _shown(_of("cold", "cores"), ".2f")),
    _numbers("first batch, ms", _of("warm", "first"), ",.0f", 0.001),
]
MEMORY = [
    _numbers("anon, MiB", _highest("anon"), ",.0f", MIB),
    _numbers("mapped, MiB", _highest("mapped"), ",.0f", MIB),
    _numbers("resident, MiB", _highest("resident"), ",.0f", MIB),
    _numbers("page cache left per useful byte, cold", _cached, ".1f"),
    _numbers("page cache left, MiB", _of("cold", "cached"), ",.0f", MIB),
    _numbers("index in memory, bytes", _of("warm", "index"), ",.0f"),
]
PROMISES = [
    Column("every window once", lambda row: str(row.get("once", "failed"))),
    Column("resumed: from the start / the middle", _resume),
    Column("resumed on two ranks", _ranks),
    Column("file cut while open", lambda row: str(row.get("truncated", "failed"))),
]


def write_page(document: dict[str, Any]) -> None:
    PAGE.write_text(page(document))


INTRODUCTION = """\
Every loader reads the same tokens: 512 Mi of uint16, 1 GiB, cut into windows of 1,024, shuffled, in batches of 64; x
and y are contiguous int64, y one token ahead. Each loader has an environment and a format of its own and is used as
its documentation recommends; the notes below show the line. The best of each column is bold, whoever it is; the bare
C loop is a limit, not a loader, and is left out of that."""

ABOUT_SPEED = """\
Warm: the file was in the page cache when the run began. Cold: none of it was, and a run ends when a quarter of its
size has come from the device, so that few windows are found cached. A loader that shuffles only locally reads long
pieces and needs fewer bytes from the device; compare it with others of its kind. Cores: processor seconds of all its
processes per second. First batch: the time from opening to the first batch, without the imports. No loader uses
worker processes, because there are only two cores; those that have threads of their own use them. For peers that
deliver one run of tokens per row, x and y are widened into two pairs of buffers, used alternately, so that no peer
pays for new pages."""

ABOUT_MEMORY = """\
The peak of the process tree above what it held after its imports; the larger of warm and cold. Anon and mapped are
sampled from outside every 50 ms, and shared memory counts as mapped; resident is the kernel's own peak, which no
sampling can miss. A faster loader reads more and so leaves more in the page cache; hence the column per useful byte.
The index is the memory that the order of these 524,288 windows takes; where it is not 0, it grows with the corpus."""

ABOUT_PROMISES = """\
One epoch of 12,352 windows whose tokens encode their positions, so that every row delivered is checked. Resumed: the
time to the first batch of a new process, once without a state and once with the state saved in the middle of the
epoch, and whether the rest of the epoch came, row for row. Two ranks: one process stopped in the middle and two
continued; exact if each step has the same rows. By hand: the loader has no order of its own, and the user's
permutation does it. Cut: every file was truncated to half its size while it was open; this is what the loader said."""


def page(document: dict[str, Any]) -> str:
    rows = {name: row for name, row in document["peers"].items() if not row["missing"]}
    missing = [row for row in document["peers"].values() if row["missing"]]
    parts = [
        "# Lowtide beside its peers",
        "<!-- Written by `make peers`. Change benchmarks/peers, not this page. -->",
        "![Windows per second of every loader, warm and cold, and the memory each held](pictures/comparison.png)",
        INTRODUCTION,
        _machine(document),
        "## Speed",
        table(rows, SPEED),
        ABOUT_SPEED,
        "## Memory",
        table(rows, MEMORY),
        ABOUT_MEMORY,
        "## Promises",
        table(rows, PROMISES),
        ABOUT_PROMISES,
        "## Notes",
        "\n".join(_note(row) for row in rows.values()),
    ]
    if missing:
        parts += ["## Not measured", "\n".join(f"- **{row['title']}**: {row['missing']}" for row in missing)]
    parts += ["`make peers` repeats all of it; the figures are in `benchmarks/results/peers.json`."]
    return "\n\n".join(parts) + "\n"


def _machine(document: dict[str, Any]) -> str:
    limits, ahead = document["limits"], document["read_ahead"]
    random = "not measured, since fio is not installed"
    if "random" in limits:
        random = f"{limits['random']:,.0f} per second (fio, depth 64)"
    return (
        f"{document['date']}, {document['cpu']}, Linux {document['kernel']}, Python {document['python']}, "
        f"NumPy {document['numpy']}; medians of {document['rounds']} rounds of {document['seconds']:g} s in turn; "
        f"{document['minutes']:.0f} minutes. The machine's limits in the same run: "
        f"{limits['sequential'] / 2**30:.1f} GiB/s in one stream (O_DIRECT); random reads of 4 KiB: {random}. "
        f"Read-ahead: {f'{ahead} KiB' if ahead else 'as this machine has it'}."
    )


def _note(row: Row) -> str:
    version = f" ({row['version']})" if row["version"] else ""
    notes = f" {row['notes']}" if row["notes"] else ""
    failed = f" Failed: {'; '.join(row['failures'])}." if row.get("failures") else ""
    return f"- **{row['title']}**{version}: `{row['code']}`.{notes}{failed}"
