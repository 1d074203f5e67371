"""A sample and its verdict as Prometheus text (version 0.0.4).

The set of series is fixed, however many files a program opens: owners are labelled by their rank (at most ``OWNERS``
per kind). Paths and process names are labels only when asked for: they are private, and each new one is a new series.
"""

from __future__ import annotations

from collections.abc import Iterator

from lowtide.memory import KINDS, Sample, Verdict
from lowtide.memory.judge.holding import owners_of
from lowtide.memory.samples import GREW

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OWNERS = 5
_LONGEST_NAME = 200  # characters of a name


def freshness_text(errors: int, age: float) -> str:
    """What changes from scrape to scrape. ``age``: seconds since the sample was taken."""
    parts = [
        *_metric("lowtide_sample_age_seconds", "Seconds since the last sample.", f"{age:.3f}"),
        *_metric("lowtide_sampler_errors_total", "Errors inside the sampler.", errors),
    ]
    return "\n".join(parts) + "\n"


def measured_text(sample: Sample | None, verdict: Verdict | None, *, names: bool) -> str:
    """What changes with the sample and the verdict only: whoever is scraped often writes it once for each."""
    parts = [*(_of_sample(sample, names=names) if sample is not None else ())]
    parts += _of_verdict(verdict) if verdict is not None else ()
    return "\n".join(parts) + "\n" if parts else ""


def _of_sample(sample: Sample, *, names: bool) -> Iterator[str]:
    kinds = [(_labels(kind=kind), str(sample.of(kind))) for kind in KINDS]
    yield from _metric("lowtide_memory_bytes", "Memory held by the watched processes, by kind.", kinds)
    yield from _metric("lowtide_retained_bytes", "Part of anon freed and kept by allocators.", sample.retained)
    yield from _metric("lowtide_processes", "Processes watched.", len(sample.processes))
    yield from _metric("lowtide_owner_bytes", "The largest owners of each kind.", list(_owners(sample, names)))
    yield from _metric("lowtide_major_faults_total", "Pages read from storage on access.", sample.major_faults)
    yield from _metric("lowtide_storage_read_bytes_total", "Bytes read from storage.", sample.read_bytes)
    cgroup = sample.cgroup
    if cgroup is None:
        return
    yield from _metric("lowtide_cgroup_current_bytes", "Bytes charged to the cgroup.", cgroup.current)
    yield from _metric("lowtide_cgroup_working_set_bytes", "What kubelet compares.", cgroup.working_set)
    yield from _metric("lowtide_cgroup_reclaimable_bytes", "What the kernel can take back at once.", cgroup.reclaimable)
    stays = cgroup.unreclaimable
    yield from _metric("lowtide_cgroup_unreclaimable_bytes", "What must stay while nothing is swapped.", stays)
    yield from _metric("lowtide_cgroup_refaults_total", "File pages evicted and read again.", cgroup.refaults)
    yield from _metric("lowtide_cgroup_oom_kills_total", "Processes killed for want of memory.", cgroup.oom_kills)
    if cgroup.pressure is not None:
        waiting = f"{cgroup.pressure:g}"
        yield from _metric("lowtide_cgroup_pressure_percent", "Of the last 10 s, with tasks waiting.", waiting)


def _owners(sample: Sample, names: bool) -> Iterator[tuple[str, str]]:
    for kind in KINDS:
        for rank, owner in enumerate(owners_of(kind, sample)[:OWNERS], 1):
            labels = {"kind": kind, "rank": str(rank), "what": owner.what}
            if names:
                labels["owner"] = owner.name[:_LONGEST_NAME]
            yield _labels(**labels), str(owner.bytes)


def _of_verdict(verdict: Verdict) -> Iterator[str]:
    grew = [(_labels(grew=word), str(int(word == verdict.grew))) for word in GREW]
    yield from _metric("lowtide_verdict", "1 for what grew since watching began.", grew)
    danger = int(verdict.danger)
    yield from _metric("lowtide_danger", "1 when the kernel may kill soon, or thrashing is seen.", danger)
    held = verdict.held
    if held is not None and held.limit:
        yield from _metric("lowtide_limit_bytes", "The smallest limit over the cgroup and the machine.", held.limit)
        yield from _metric("lowtide_limit_used_bytes", "Bytes inside it that cannot be taken back.", held.limit_used)


def _metric(name: str, text: str, value: int | str | list[tuple[str, str]]) -> list[str]:
    """One metric; several values come with the labels that tell them apart."""
    values = value if isinstance(value, list) else [("", str(value))]
    kind = "counter" if name.endswith("_total") else "gauge"
    return [f"# HELP {name} {text}", f"# TYPE {name} {kind}", *(f"{name}{labels} {each}" for labels, each in values)]


def _labels(**labels: str) -> str:
    return "{" + ",".join(f'{name}="{_escaped_label(value)}"' for name, value in labels.items()) + "}"


def _escaped_label(value: str) -> str:
    text = value.encode("utf-8", "backslashreplace").decode()
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
