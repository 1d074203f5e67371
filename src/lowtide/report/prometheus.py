"""A sample and its verdict as Prometheus text (version 0.0.4).

The set of series is fixed: kinds and verdicts are closed lists, owners are labelled by their rank (at most
``OWNERS`` per kind), so that a program that opens a million files makes no more series than one that opens ten. Paths
and process names are labels only when asked for: they are private, and every new one is a new series.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from lowtide.memory import GREW, KINDS, Sample, Verdict
from lowtide.memory.judge.holding import owners_of

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OWNERS = 5
_LONGEST_NAME = 200  # characters of a name


def prometheus_text(sample: Sample | None, verdict: Verdict | None, *, names: bool, errors: int, age: float) -> str:
    """Everything there is to scrape. ``age``: seconds since the sample was taken."""
    parts = [
        *_metric("lowtide_sample_age_seconds", "gauge", "Seconds since the last sample.", [("", f"{age:.3f}")]),
        *_metric("lowtide_sampler_errors_total", "counter", "Errors inside the sampler.", [("", str(errors))]),
    ]
    if sample is not None:
        parts += _of_sample(sample, names=names)
    if verdict is not None:
        parts += _of_verdict(verdict)
    return "\n".join(parts) + "\n"


def _of_sample(sample: Sample, *, names: bool) -> Iterator[str]:
    kinds = [(_labels(kind=kind), str(sample.of(kind))) for kind in KINDS]
    yield from _metric("lowtide_memory_bytes", "gauge", "Memory held by the watched processes, by kind.", kinds)
    retained = [("", str(sample.retained))]
    yield from _metric("lowtide_retained_bytes", "gauge", "Part of anon freed and kept by allocators.", retained)
    yield from _metric("lowtide_processes", "gauge", "Processes watched.", [("", str(len(sample.processes)))])
    yield from _metric("lowtide_owner_bytes", "gauge", "The largest owners of each kind.", list(_owners(sample, names)))
    faults = [("", str(sample.major_faults))]
    yield from _metric("lowtide_major_faults_total", "counter", "Pages read from storage on access.", faults)
    read = [("", str(sample.read_bytes))]
    yield from _metric("lowtide_storage_read_bytes_total", "counter", "Bytes read from storage.", read)
    cgroup = sample.cgroup
    if cgroup is None:
        return
    for name, kind, text, value in (
        ("cgroup_current_bytes", "gauge", "Bytes charged to the cgroup.", cgroup.current),
        ("cgroup_working_set_bytes", "gauge", "What kubelet compares.", cgroup.working_set),
        ("cgroup_reclaimable_bytes", "gauge", "What the kernel can take back at once.", cgroup.reclaimable),
        ("cgroup_unreclaimable_bytes", "gauge", "What must stay while nothing is swapped.", cgroup.unreclaimable),
        ("cgroup_refaults_total", "counter", "File pages evicted and read again.", cgroup.refaults),
        ("cgroup_oom_kills_total", "counter", "Processes killed for want of memory.", cgroup.oom_kills),
    ):
        yield from _metric(f"lowtide_{name}", kind, text, [("", str(value))])
    if cgroup.pressure is not None:
        waiting = [("", f"{cgroup.pressure:g}")]
        yield from _metric("lowtide_cgroup_pressure_percent", "gauge", "Of the last 10 s, with tasks waiting.", waiting)


def _owners(sample: Sample, names: bool) -> Iterator[tuple[str, str]]:
    for kind in KINDS:
        for rank, owner in enumerate(owners_of(kind, sample)[:OWNERS], 1):
            labels = {"kind": kind, "rank": str(rank), "what": owner.what}
            if names:
                labels["owner"] = owner.name[:_LONGEST_NAME]
            yield _labels(**labels), str(owner.bytes)


def _of_verdict(verdict: Verdict) -> Iterator[str]:
    grew = [(_labels(grew=word), str(int(word == verdict.grew))) for word in GREW]
    yield from _metric("lowtide_verdict", "gauge", "1 for what grew since watching began.", grew)
    danger = [("", str(int(verdict.danger)))]
    yield from _metric("lowtide_danger", "gauge", "1 when the kernel may kill soon, or thrashing is seen.", danger)
    if verdict.held is not None and verdict.held.limit:
        limit = [("", str(verdict.held.limit))]
        yield from _metric("lowtide_limit_bytes", "gauge", "The smallest limit over the cgroup and the machine.", limit)
        used = [("", str(verdict.held.limit_used))]
        yield from _metric("lowtide_limit_used_bytes", "gauge", "Bytes inside it that cannot be taken back.", used)


def _metric(name: str, kind: str, text: str, values: Iterable[tuple[str, str]]) -> list[str]:
    return [f"# HELP {name} {text}", f"# TYPE {name} {kind}", *(f"{name}{labels} {value}" for labels, value in values)]


def _labels(**labels: str) -> str:
    return "{" + ",".join(f'{name}="{_escaped_label(value)}"' for name, value in labels.items()) + "}"


def _escaped_label(value: str) -> str:
    text = value.encode("utf-8", "backslashreplace").decode()
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
