"""Whether the evidence is recent enough for what is concluded from it. Pure.

What allocators keep, what processes share and which files lie in a tmpfs is looked at now and then; cheaper counters
tell in every sample how far it has moved since (``Sample.stale``). A figure that may be off by more than a few percent
never has high confidence, and one line says why.
"""

from __future__ import annotations

from collections.abc import Sequence

from lowtide.memory.samples import Sample
from lowtide.units import MIB, format_duration, format_size

_OFF, _OFF_SHARE = 4 * MIB, 0.05  # of a figure: it may be off by the larger of the two
_RATE_OVER = 1.0  # seconds before the last sample with workers, over which they are taken to go on
_FASTER = 1.5  # times as fast as before, for what nobody saw: on a busy machine it goes by starts
_AT_ONCE = 0.05  # seconds


def outdated(grew: str, samples: Sequence[Sample], last: Sample) -> str:
    """Why the figures of a verdict may be outdated; "" where they are not. ``last`` is the sample it speaks of."""
    if grew in ("retained", "nothing"):
        figure = last.retained if grew == "retained" else last.anon
        if _moved(last, "heap") > _allowed(figure):
            return "the heap was last looked at " + _when(last, "heap", "moved since")
    if grew in ("shmem", "nothing"):
        found = _ahead("shmem", "files", samples)
        if found is not None:
            return "the files in tmpfs were last looked at " + _when(found, "files", "came or went since")
    if grew in ("workers", "copied"):
        forked = [sample for sample in samples if any(each.forked for each in sample.processes)]
        found = _ahead("anon", "sharing", forked)
        if found is not None:
            since = _when(found, "sharing", "may have been copied since")
            return f"what the processes share was last looked at {since}"
        return _went_on(forked, samples)
    return ""


def _went_on(forked: list[Sample], samples: Sequence[Sample]) -> str:
    """Nobody sees what workers copy after their last sample: they are assumed to go on, or to be somewhat faster."""
    end = max(forked, key=_reached)
    after = next((sample for sample in samples if sample.seconds > end.seconds), None)
    begin = next(sample for sample in forked if end.seconds - sample.seconds <= _RATE_OVER)
    if after is None or begin is end or _pids(end) <= _pids(after):
        return ""
    gap, rate = after.seconds - end.seconds, (_reached(end) - _reached(begin)) / (end.seconds - begin.seconds)
    highest = max(sample.anon for sample in forked)
    if _reached(end) + _FASTER * rate * gap - highest <= _allowed(highest):
        return ""
    return (
        f"workers were last seen {format_duration(gap)} before one was found ended, while they copied "
        f"{format_size(int(rate))} per second"
    )


def _reached(sample: Sample) -> int:
    return sample.anon + _moved(sample, "sharing")


def _pids(sample: Sample) -> set[int]:
    return {each.pid for each in sample.processes}


def _ahead(kind: str, what: str, samples: Sequence[Sample]) -> Sample | None:
    """The sample that may have stood highest above the highest figure, if by more than is allowed."""
    highest = max(sample.of(kind) for sample in samples)
    most = max(samples, key=lambda sample: sample.of(kind) + _moved(sample, what))
    return most if most.of(kind) + _moved(most, what) - highest > _allowed(highest) else None


def _moved(sample: Sample, what: str) -> int:
    return sum(look.moved for look in sample.stale if look.what == what)


def _allowed(figure: int) -> float:
    return max(_OFF, _OFF_SHARE * figure)


def _when(sample: Sample, what: str, moved: str) -> str:
    age = max(look.seconds for look in sample.stale if look.what == what)
    size = format_size(_moved(sample, what))
    if age < _AT_ONCE:
        return f"while up to {size} of it moved"
    then = "the end" if what == "heap" else f"it stood highest ({format_duration(sample.seconds)})"
    return f"{format_duration(age)} before {then}, and up to {size} {moved}"
