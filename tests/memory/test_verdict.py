"""Verdicts are pure: traces made here by hand, one for each way memory goes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from lowtide.memory import KINDS, Sample, Trace, Verdict, judge
from lowtide.memory.samples import GREW, CgroupSample, Ended, FileSample, ProcessSample, StaleLook
from lowtide.memory.traces import from_dict, to_dict

MIB = 1024**2
COUNT, STEP = 60, 1.0

Course = Callable[[int], float]


def flat(_: int) -> float:
    return 100.0


def none(_: int) -> float:
    return 0.0


def process(pid: int = 10, *, anon: float = 100, rss_anon: float | None = None, forked: bool = False) -> ProcessSample:
    whole = int((anon if rss_anon is None else rss_anon) * MIB)
    return ProcessSample(pid, 1, "python", int(anon * MIB), 0, 0, 0, 0, whole, 0, 0, forked)


def trace_of(
    processes: Callable[[int], Sequence[ProcessSample]] | None = None,
    cgroup: Callable[[int], CgroupSample] | None = None,
    files: Callable[[int], Sequence[FileSample]] | None = None,
    **kinds: Course,
) -> Trace:
    return trace_with(kinds, processes, cgroup, files)


def trace_with(
    kinds: dict[str, Course],
    processes: Callable[[int], Sequence[ProcessSample]] | None = None,
    cgroup: Callable[[int], CgroupSample] | None = None,
    files: Callable[[int], Sequence[FileSample]] | None = None,
) -> Trace:
    """A trace whose kinds follow the given courses, in MiB by number of sample; the others stay flat."""
    samples = []
    for number in range(COUNT):
        sizes: Any = {kind: int(kinds.get(kind, flat)(number) * MIB) for kind in KINDS}
        members = processes(number) if processes else [process(anon=sizes["anon"] / MIB)]
        samples.append(
            Sample(
                seconds=number * STEP,
                found_cache=int(kinds.get("found_cache", none)(number) * MIB),
                processes=tuple(members),
                files=tuple(files(number)) if files else (),
                cgroup=cgroup(number) if cgroup else None,
                **sizes,
            )
        )
    return Trace("python train.py", 0.0, STEP, {"memory": str(16 * 1024 * MIB)}, tuple(samples))


def up(rate: float) -> Course:
    return lambda number: 100 + rate * number


@pytest.mark.parametrize("kind", KINDS)
def test_the_kind_that_climbs_is_the_verdict_with_its_slope(kind: str) -> None:
    verdict = judge(trace_with({kind: up(2)}))
    assert verdict.grew == kind
    assert verdict.confidence == "high"
    growth = {each.kind: each for each in verdict.growth}[kind]
    assert growth.per_minute == pytest.approx(120 * MIB, rel=0.01)
    judged = 57 if kind in ("cache", "dirty") else 40  # reading and writing is work from the first second on
    assert growth.grew == pytest.approx(2 * judged * MIB, rel=0.1)
    assert verdict.fix
    assert not any(line.startswith(f"{kind}:") for line in verdict.not_it)


def test_flat_memory_is_nothing() -> None:
    verdict = judge(trace_of())
    assert (verdict.grew, verdict.confidence, verdict.fix) == ("nothing", "high", ())


def test_what_rises_at_the_start_only_is_nothing_and_is_said() -> None:
    verdict = judge(trace_of(anon=lambda number: min(100 + 300 * number, 2000)))
    assert verdict.grew == "nothing"
    assert "anon rose by 1.86 GiB at the start only" in verdict.headline


def test_noise_and_a_sawtooth_are_nothing() -> None:
    random = Random(0)
    assert judge(trace_of(anon=lambda _: 1000 + random.uniform(-6, 6))).grew == "nothing"
    sawtooth = judge(trace_of(anon=lambda number: 100 + 40 * (number % 4) if number < 59 else 100))
    assert sawtooth.grew == "nothing"
    assert "at most and fell again" in sawtooth.headline


def test_a_few_odd_samples_do_not_move_the_slope() -> None:
    verdict = judge(trace_of(anon=lambda number: 5000 if number in (20, 40) else 100 + number))
    growth = verdict.growth[0]
    assert verdict.grew == "anon"
    assert growth.per_minute == pytest.approx(60 * MIB, rel=0.05)


def test_freeing_everything_before_exit_does_not_hide_the_growth() -> None:
    verdict = judge(trace_of(anon=lambda number: 100 + 5 * number if number < 57 else 20))
    assert verdict.grew == "anon"


def test_memory_that_falls_is_nothing() -> None:
    assert judge(trace_of(anon=lambda number: 1000 - 10 * number)).grew == "nothing"


def test_cache_found_when_a_file_was_opened_is_not_growth() -> None:
    def late(number: int) -> float:
        return 0.0 if number < 30 else 4000.0

    assert judge(trace_of(cache=late)).grew == "cache"  # the control: the same cache, brought in by the program
    assert judge(trace_of(cache=late, found_cache=late)).grew == "nothing"


def test_cache_that_mapping_brought_in_goes_with_the_mapping() -> None:
    assert judge(trace_of(mapped=up(2), cache=up(10))).grew == "mapped"
    assert judge(trace_of(mapped=up(0.1), cache=up(10))).grew == "cache"


def test_heap_that_grows_in_forked_children_while_the_parent_is_flat_is_workers() -> None:
    """Copy on access: the children's whole RSS stays, their own share rises, and so does the parent's."""

    def members(number: int) -> list[ProcessSample]:
        copied = min(1.0, number / COUNT)
        share = 600 * (1 / 3 + 2 / 3 * copied)
        parent = process(10, anon=share, rss_anon=600)
        return [parent, *(process(pid, anon=share, rss_anon=600, forked=True) for pid in (11, 12))]

    trace = trace_of(members, anon=lambda number: sum(each.anon for each in members(number)) / MIB)
    verdict = judge(trace)
    assert verdict.grew == "workers"
    assert [each.name.split()[1] for each in verdict.who] == ["11", "12"]


def test_heap_that_forked_children_allocate_themselves_is_anon_and_theirs() -> None:
    """The control to copy on access: here the children's whole RSS rises with their share."""

    def members(number: int) -> list[ProcessSample]:
        child = process(11, anon=50 + 5 * number, rss_anon=300 + 5 * number, forked=True)
        return [process(10, anon=250, rss_anon=300), replace(child, parent=10)]

    verdict = judge(trace_of(members, anon=lambda number: 300 + 5 * number))
    assert verdict.grew == "anon"
    assert verdict.who[0].name.startswith("process 11")


def test_children_forked_one_after_the_other_that_each_allocate_are_anon() -> None:
    """Nothing of what they allocated is missed because it was there when they were first seen."""

    def members(number: int) -> list[ProcessSample]:
        born = range(number // 6)
        children = [process(20 + each, anon=60, rss_anon=160, forked=True) for each in born]
        return [process(10, anon=100, rss_anon=100), *(replace(child, parent=10) for child in children)]

    trace = trace_of(members, anon=lambda number: 100 + 60 * (number // 6))
    assert judge(trace).grew == "anon"


def test_a_parent_that_grows_is_anon_even_with_forked_children() -> None:
    def members(number: int) -> list[ProcessSample]:
        return [process(10, anon=100 + 5 * number), process(11, anon=50, forked=True)]

    verdict = judge(trace_of(members, anon=lambda number: 150 + 5 * number))
    assert verdict.grew == "anon"
    assert verdict.who[0].name.startswith("process 10")


def test_a_program_started_by_a_shell_that_grows_is_anon_not_workers() -> None:
    def members(number: int) -> list[ProcessSample]:
        return [process(10, anon=2), process(11, anon=100 + 5 * number)]

    verdict = judge(trace_of(members, anon=lambda number: 102 + 5 * number))
    assert verdict.grew == "anon"
    assert verdict.who[0].name.startswith("process 11")


def test_the_file_that_grew_is_named_and_put_into_the_fix() -> None:
    def files(number: int) -> list[FileSample]:
        big = FileSample("/data/train.bin", 900 * MIB, (100 + 5 * number) * MIB, 0, 0, 100 * MIB, "ext4", False)
        return [big, FileSample("/lib/x.so", 50 * MIB, 50 * MIB, 0, 0, 50 * MIB, "ext4", False)]

    verdict = judge(trace_of(files=files, cache=up(5)))
    assert (verdict.who[0].name, verdict.who[0].grew) == ("/data/train.bin", 295 * MIB)
    assert len(verdict.who) == 1
    assert "os.open('/data/train.bin', os.O_RDONLY)" in verdict.fix[1]


def cgroup(number: int, *, limit: int | None = 1000 * MIB, kills: int = 0, refaults: int = 0) -> CgroupSample:
    anon = (100 + 2 * number) * MIB
    return CgroupSample(
        2, "/pod", anon + 400 * MIB, limit, anon, 400 * MIB, 300 * MIB, 100 * MIB, 0, 0, refaults, kills
    )


def test_the_time_until_the_limit_is_computed_from_the_slope() -> None:
    verdict = judge(trace_of(cgroup=cgroup, anon=up(2)))
    minutes = (1000 - 218) / 120
    oom = verdict.risk[0]
    assert (oom.what, oom.level, oom.limit) == ("oom", "high", 1000 * MIB)
    assert oom.seconds == pytest.approx(minutes * 60, rel=0.01)
    assert "1,000 MiB (cgroup v2 /pod) in about 6 min" in oom.sentence
    assert any("working set 518 MiB of 1,000 MiB (52%), of it 300 MiB" in risk.sentence for risk in verdict.risk)


def test_without_a_cgroup_limit_the_machine_is_the_limit() -> None:
    verdict = judge(trace_of(cgroup=lambda number: cgroup(number, limit=None), anon=up(2)))
    assert "16.0 GiB (the machine)" in verdict.risk[0].sentence


def test_kills_and_refaults_seen_while_watching_are_said() -> None:
    def bad(number: int) -> CgroupSample:
        return cgroup(number, kills=number // 30, refaults=1000 * number)

    risk = " ".join(each.sentence for each in judge(trace_of(cgroup=bad)).risk)
    assert "killed 1 process" in risk
    assert "evicted and read again" in risk


def test_what_could_not_be_measured_lowers_the_confidence_and_is_listed() -> None:
    whole = trace_of(anon=up(2))
    blind = Trace(whole.command, 0, STEP, whole.machine, whole.samples, missing={"cache": "not ours"})
    assert judge(whole).confidence == "high"
    assert judge(blind).confidence == "medium"
    assert "not measured: cache (not ours)" in judge(blind).evidence


def test_too_few_samples_give_low_confidence() -> None:
    whole = trace_of(anon=up(20))
    few = Trace(whole.command, 0, STEP, whole.machine, whole.samples[:3])
    assert judge(few).confidence == "low"


def test_a_trace_without_samples_has_a_verdict_that_says_so() -> None:
    verdict = judge(Trace("x", 0, 1, missing={"process": "it ended at once"}))
    assert (verdict.grew, verdict.confidence) == ("nothing", "low")
    assert "it ended at once" in verdict.headline


def test_a_budget_nothing_was_measured_for_is_not_called_kept() -> None:
    verdict = judge(Trace("x", 0, 1, budget=MIB))
    assert verdict.budget is None
    assert "the budget was not checked" in verdict.headline


def test_the_budget_counts_what_is_held_at_the_peak_and_not_the_cache() -> None:
    whole = trace_of(anon=lambda number: 500 if number == 10 else 100, cache=up(100))
    for allowed, ok in ((800, True), (799, False)):
        trace = Trace(whole.command, 0, STEP, whole.machine, whole.samples, budget=allowed * MIB)
        budget = judge(trace).budget
        assert budget is not None
        assert (budget.peak, budget.seconds, budget.ok) == (800 * MIB, 10.0, ok)


def test_a_long_trace_is_judged_in_little_time_and_a_slow_leak_is_found() -> None:
    samples = tuple(Sample(float(n), 4000 * MIB + n * 20_000, 0, 0, 0, 0, 0) for n in range(20_000))
    verdict = judge(Trace("x", 0, 1, samples=samples))
    assert verdict.grew == "anon"
    assert verdict.growth[0].per_minute == pytest.approx(1_200_000, rel=0.01)


@pytest.mark.parametrize("kind", [*KINDS, None])
def test_a_verdict_survives_json(kind: str | None) -> None:
    verdict = judge(trace_with({kind: up(2)} if kind else {}))
    assert verdict.grew in GREW
    assert from_dict(Verdict, to_dict(verdict)) == verdict


def test_kinds_that_were_hardly_looked_at_are_not_called_flat_with_high_confidence() -> None:
    looked_at = trace_of()
    carried_on = replace(
        looked_at, samples=tuple(replace(s, files_asked=number < 3) for number, s in enumerate(looked_at.samples))
    )
    assert (judge(looked_at).grew, judge(looked_at).confidence) == ("nothing", "high")
    assert (judge(carried_on).grew, judge(carried_on).confidence) == ("nothing", "low")


def test_cache_of_files_that_were_not_seen_is_said_where_the_cgroup_shows_it() -> None:
    def charged(number: int) -> CgroupSample:
        return replace(cgroup(number), file=number * 10 * MIB)

    idle = trace_of(cgroup=charged)  # the control: others in the cgroup read, this program did not
    reads = replace(
        idle, samples=tuple(replace(s, read_bytes=number * 10 * MIB) for number, s in enumerate(idle.samples))
    )
    assert "opened and closed" not in judge(idle).headline
    assert judge(reads).confidence == "low"
    assert "590 MiB that it read stayed in the page cache" in judge(reads).headline


def test_growth_is_judged_by_the_samples_that_really_read_it() -> None:
    def seen_every_tenth(number: int) -> float:
        return 100 + 10 * (number // 10 * 10)

    trace = trace_of(dirty=seen_every_tenth)
    trace = replace(trace, samples=tuple(replace(s, files_asked=n % 10 == 0) for n, s in enumerate(trace.samples)))
    assert judge(trace).grew == "dirty"


def test_what_is_held_comes_with_owners_that_add_up_whether_or_not_it_grew() -> None:
    def files(_: int) -> list[FileSample]:
        return [FileSample("/data/table.bin", 900 * MIB, 80 * MIB, 0, 80 * MIB, 0, "ext4", False)]

    held = judge(trace_of(files=files)).held
    assert held is not None
    mapped = next(each for each in held.kinds if each.kind == "mapped")
    assert (mapped.end, mapped.peak) == (100 * MIB, 100 * MIB)
    assert [(each.name, each.bytes) for each in mapped.owners] == [
        ("/data/table.bin", 80 * MIB),
        ("not explained", 20 * MIB),
    ]
    assert (held.takeable, held.stays) == (200 * MIB, 400 * MIB)
    assert held.share == pytest.approx(300 / (16 * 1024))


def test_the_end_is_the_last_sample_before_teardown_and_not_what_an_exiting_program_has_left() -> None:
    exiting = trace_of(mapped=lambda number: 2000 if number < COUNT - 1 else 10)
    ended = replace(exiting, exit_code=0)
    ends = [judge(each).held for each in (exiting, ended)]
    assert ends[0] is not None and ends[1] is not None
    assert [next(each.end for each in held.kinds if each.kind == "mapped") for held in ends if held] == [
        10 * MIB,
        2000 * MIB,
    ]


def test_what_was_given_back_long_before_the_exit_is_not_held_at_the_end() -> None:
    """800 MiB given back eight seconds before the end; the control lets go without a pause until it ends."""
    back = replace(trace_of(anon=lambda number: 900 if number < 52 else 100), exit_code=0)
    falls = replace(trace_of(anon=lambda number: 900 if number < 52 else 900 - 100 * (number - 51)), exit_code=0)
    ends = [judge(each).held for each in (back, falls)]
    assert [next(each.end for each in held.kinds if each.kind == "anon") // MIB for held in ends if held] == [100, 900]
    assert [held.end_seconds for held in ends if held] == [59.0, 51.0]


def test_a_leak_leads_whatever_page_cache_came_beside_it() -> None:
    verdict = judge(trace_of(anon=up(1), cache=up(40), cgroup=cgroup))
    assert verdict.grew == "anon"
    assert "Besides, cache +" in verdict.headline
    assert verdict.risk[0].seconds is not None
    assert judge(trace_of(anon=up(0.1), cache=up(40))).grew == "cache"  # the control: within noise


def test_locked_pages_cannot_be_taken_back_and_say_so() -> None:
    def locked(share: float) -> Trace:
        trace = trace_of(mapped=up(4))
        return replace(
            trace, samples=tuple(replace(s, locked=s.mapped, locked_files=int(share * s.mapped)) for s in trace.samples)
        )

    verdict = judge(locked(1.0))
    assert (verdict.grew, verdict.because) == ("mapped", "locked")
    assert "cannot take them back" in verdict.headline
    assert verdict.held is not None
    assert verdict.held.takeable == 100 * MIB  # the cache alone
    free = judge(locked(0.0))
    assert free.because == ""
    assert free.held is not None
    assert free.held.takeable == verdict.held.takeable + 336 * MIB


def test_huge_pages_of_the_pool_are_a_kind_of_their_own() -> None:
    trace = trace_of()
    grows = tuple(replace(s, hugetlb=number * 4 * MIB) for number, s in enumerate(trace.samples))
    verdict = judge(replace(trace, samples=grows))
    assert verdict.grew == "hugetlb"
    assert verdict.held is not None
    assert next(each.peak for each in verdict.held.kinds if each.kind == "hugetlb") == 236 * MIB
    assert verdict.held.stays == (400 + 236) * MIB


def test_heap_in_transparent_huge_pages_says_so() -> None:
    def members(number: int) -> list[ProcessSample]:
        return [replace(process(anon=100 + 5 * number), huge=5 * number * MIB)]

    assert judge(trace_of(members, anon=up(5))).because == "huge pages"
    assert judge(trace_of(anon=up(5))).because == ""


def test_heap_of_an_allocator_that_cannot_be_asked_is_never_certain_and_retained_is_unknown() -> None:
    def members(number: int) -> list[ProcessSample]:
        return [replace(process(anon=100 + 5 * number), unread=(90 + 5 * number) * MIB, allocator="jemalloc")]

    verdict = judge(trace_of(members, anon=up(5)))
    assert (verdict.grew, verdict.confidence) == ("anon", "medium")
    assert any("retained: unknown for 385 MiB" in line and "jemalloc" in line for line in verdict.evidence)
    assert judge(trace_of(anon=up(5))).confidence == "high"


def test_a_parent_that_writes_while_a_forked_child_lives_is_copied_and_not_workers() -> None:
    def members(number: int) -> list[ProcessSample]:
        copied = number / COUNT
        parent = replace(process(10, anon=300 * (1 + copied), rss_anon=600), faults=1000 * number)
        return [parent, replace(process(11, anon=300 * (1 + copied), rss_anon=600, forked=True), parent=10)]

    verdict = judge(trace_of(members, anon=lambda number: 600 * (1 + number / COUNT)))
    assert verdict.grew == "copied"
    assert verdict.who[0].name.startswith("process 10")


def test_throttled_is_slow_and_not_dying() -> None:
    def slowed(number: int) -> CgroupSample:
        return replace(cgroup(number), high=500 * MIB, throttled=10 * number)

    verdict = judge(trace_of(cgroup=slowed))
    assert verdict.throttled
    assert verdict.danger is False
    assert "Throttled 590 times at memory.high, 500 MiB: slowed down, not killed" in verdict.headline
    calm = judge(trace_of(cgroup=lambda number: replace(cgroup(number), high=500 * MIB)))
    assert not calm.throttled
    assert any(line.startswith("throttled: not while it was watched") for line in calm.evidence)


def test_what_the_cgroup_charges_beside_the_processes_forbids_a_certain_nothing() -> None:
    def charged(number: int) -> CgroupSample:
        return replace(cgroup(0), shmem=number * 4 * MIB, slab=8 * MIB)

    verdict = judge(trace_of(cgroup=charged, shmem=none))
    assert (verdict.grew, verdict.confidence) == ("nothing", "low")
    assert "held by no process: closed tmpfs files 236 MiB, slab 8.00 MiB" in verdict.headline
    assert judge(trace_of(cgroup=lambda number: charged(0), shmem=none)).confidence == "high"


def test_a_killed_child_is_not_called_a_kill_that_did_not_happen() -> None:
    ended = Ended("exit", 0, "", "exit code 0; the kernel killed python (11)", ("python (11)",))
    risk = judge(replace(trace_of(), exit_code=0, ended=ended)).risk[0]
    assert (risk.what, risk.level) == ("oom", "high")
    assert "it killed python (11), not the program itself" in risk.sentence


def test_why_a_dashboard_differs_is_one_line_each() -> None:
    verdict = judge(trace_of(cgroup=cgroup))
    assert [each.name for each in verdict.shown] == ["usage", "working set", "RSS", "ours"]
    assert [each.bytes // MIB for each in verdict.shown] == [618, 518, 100, 600]
    assert sum(line.startswith("shown as ") for line in verdict.evidence) == 4


def test_a_peak_between_two_samples_is_taken_from_what_the_kernel_remembers() -> None:
    few = trace_of(anon=flat)
    short = replace(few, samples=few.samples[:2], exit_code=0, peak_rss=500 * MIB)
    held = judge(short).held
    assert held is not None
    assert (held.between, held.peak) == (400 * MIB, 1000 * MIB)
    anon = held.kinds[0]
    assert (anon.peak, anon.owners[-1].name, anon.owners[-1].bytes) == (500 * MIB, "between two samples", 400 * MIB)
    running = judge(replace(short, about="process")).held  # the control: it may have been there before we came
    assert running is not None
    assert running.between == 0


def test_heap_that_allocators_keep_is_retained_and_live_heap_is_not() -> None:
    def kept(size: float) -> Trace:
        trace = trace_of(anon=lambda number: 100 + min(10 * number, 400))
        late = [replace(s, retained=int(size * MIB) if n > 40 else 0) for n, s in enumerate(trace.samples)]
        return replace(trace, samples=tuple(late))

    assert judge(kept(400)).grew == "retained"
    assert judge(kept(20)).grew == "anon"  # the control: the same heap, in use


def test_a_program_that_has_ended_is_given_no_time_to_live() -> None:
    running = trace_of(cgroup=cgroup, anon=up(2))
    ended = replace(running, exit_code=0, ended=Ended("exit", 0, "", "exit code 0"))
    assert judge(running).risk[0].seconds is not None
    risk = judge(ended).risk[0]
    assert (risk.level, risk.seconds) == ("none", None)
    assert "did not happen" in risk.sentence


def test_refaults_are_judged_against_the_cgroups_own_limit() -> None:
    def thrashing(limit: int | None) -> str:
        trace = trace_of(cgroup=lambda number: cgroup(number, limit=limit, refaults=1000 * number))
        return next(risk.sentence for risk in judge(trace).risk if risk.what == "thrash")

    assert "640 MiB is below what the program uses" in thrashing(640 * MIB)
    assert "its cgroup has no limit" in thrashing(None)
    assert "far from its limit" in thrashing(4000 * MIB)


def test_errors_of_the_sampler_stand_in_the_verdict() -> None:
    trace = replace(trace_of(), missing={"sampling": "3 error(s) in the sampler, the last one ValueError: x"})
    verdict = judge(trace)
    assert verdict.confidence == "low"
    assert "Sampling failed: 3 error(s)" in verdict.headline


@pytest.mark.parametrize("about", ["command", "process", "block"])
def test_what_happens_in_the_first_instant_counts_in_a_block_only(about: str) -> None:
    trace = replace(trace_of(anon=lambda number: 100 if number == 0 else 400), about=about)
    assert judge(trace).grew == ("anon" if about == "block" else "nothing")


def looked_before(trace: Trace, what: str, seconds: float, moved: float, *, since: int = 0) -> Trace:
    """The same trace, whose looks were that old from a sample on, while so many MiB moved."""
    look = StaleLook(what, seconds, int(moved * MIB))
    samples = (replace(each, stale=(look,)) if place >= since else each for place, each in enumerate(trace.samples))
    return replace(trace, samples=tuple(samples))


def freed_half(number: int) -> list[ProcessSample]:
    kept = 200 * MIB if number >= 30 else 0
    return [replace(process(anon=400), retained=kept, retained_from="allocator" if kept else "")]


@pytest.mark.parametrize("grew", ["retained", "nothing"])
def test_a_heap_that_moved_since_it_was_looked_at_is_not_judged_with_high_confidence(grew: str) -> None:
    if grew == "retained":
        trace = trace_of(freed_half, anon=lambda _: 400)
        kept = [replace(each, retained=each.processes[0].retained) for each in trace.samples]
        trace = replace(trace, samples=tuple(kept))
    else:
        trace = trace_of()
    verdict = judge(looked_before(trace, "heap", 1.2, 50))
    assert (verdict.grew, verdict.confidence) == (grew, "medium")
    assert verdict.evidence[0] == "the heap was last looked at 1.2 s before the end, and up to 50.0 MiB moved since"
    assert (judge(trace).grew, judge(trace).confidence) == (grew, "high")  # the control: nothing moved since the look
    little = judge(looked_before(trace, "heap", 1.2, 3))
    assert (little.grew, little.confidence) == (grew, "high")


def test_a_heap_that_was_freed_while_it_was_looked_at_is_said_to_be() -> None:
    verdict = judge(looked_before(trace_of(), "heap", 0.0, 50))
    assert verdict.confidence == "medium"
    assert verdict.evidence[0] == "the heap was last looked at while up to 50.0 MiB of it moved"


def test_a_tmpfs_that_grew_after_its_files_were_asked_is_not_judged_with_high_confidence() -> None:
    trace = trace_of(shmem=up(2))
    verdict = judge(looked_before(trace, "files", 1.6, 30, since=COUNT - 1))
    assert (verdict.grew, verdict.confidence) == ("shmem", "medium")
    assert verdict.evidence[0].startswith("the files in tmpfs were last looked at 1.6 s before it stood highest (59 s)")
    assert judge(trace).confidence == "high"
    # The control: what was not yet known in the middle was known at the end, which is what the verdict speaks of.
    seen_later = replace(
        trace, samples=(*looked_before(trace, "files", 1.6, 30).samples[: COUNT // 2], *trace.samples[COUNT // 2 :])
    )
    assert judge(seen_later).confidence == "high"
    nothing = judge(looked_before(trace_of(), "files", 1.6, 30))
    assert (nothing.grew, nothing.confidence) == ("nothing", "medium")


def copying_workers(number: int) -> list[ProcessSample]:
    share = 600 * (1 / 3 + 2 / 3 * min(1.0, number / 50))
    return [process(10, anon=share, rss_anon=600), process(11, anon=share, rss_anon=600, forked=True)]


def test_workers_that_copied_since_the_look_or_until_they_ended_are_not_judged_with_high_confidence() -> None:
    def both(number: int) -> float:
        return sum(each.anon for each in copying_workers(number)) / MIB

    trace = trace_of(copying_workers, anon=both)
    assert (judge(trace).grew, judge(trace).confidence) == ("workers", "high")  # the control: they came to rest
    stale = judge(looked_before(trace, "sharing", 1.5, 200))
    assert (stale.grew, stale.confidence) == ("workers", "medium")
    assert stale.evidence[0].startswith("what the processes share was last looked at 1.5 s before")
    gone = replace(trace.samples[40], seconds=46.0, anon=200 * MIB, processes=(process(10, anon=200, rss_anon=600),))
    ended = judge(replace(trace, samples=(*trace.samples[:40], gone)))
    assert (ended.grew, ended.confidence) == ("workers", "medium")
    assert ended.evidence[0].startswith("workers were last seen 7.0 s before one was found ended, while they copied")
