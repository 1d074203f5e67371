"""Wrong arguments of any kind are an exception of the C core, never a crash."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.engine.asked import PYTHON, int64, native, noise

from lowtide.engine import KEEP, Pair, Runs

REFUSED = (TypeError, ValueError, BufferError, OverflowError, OSError)
SIZE = 4096


@pytest.fixture(scope="module")
def fd(tmp_path_factory: pytest.TempPathFactory) -> int:
    path = tmp_path_factory.mktemp("native") / "noise.dat"
    noise(path, SIZE)
    return os.open(path, os.O_RDONLY)


@pytest.fixture(scope="module")
def queues() -> dict[str, Any]:
    return {way: native().queue(way, depth=2) for way, why in native().unavailable().items() if not why}


@pytest.fixture(scope="module")
def ahead() -> Any:
    return native().lane("announce")


def read_only(array: Any) -> Any:
    array.flags.writeable = False
    return array


def released() -> memoryview:
    view = memoryview(bytearray(8))
    view.release()
    return view


NUMBERS = st.one_of(
    st.integers(-5, 5000),
    st.sampled_from([2**31 - 1, 2**31, 2**32, 2**62, 2**63 - 1, 2**63, 2**64, -(2**63), -(2**63) - 1, 10**30]),
)
ODD = st.one_of(
    st.none(),
    NUMBERS,
    st.floats(),
    st.text(max_size=3),
    st.binary(max_size=20),
    st.booleans(),
    st.builds(lambda values: np.array(values, np.int64), st.lists(st.integers(-3, 5000), max_size=4)),
    st.builds(lambda values: np.array(values, np.int32), st.lists(st.integers(-3, 100), max_size=4)),
    st.sampled_from(["int8", "uint64", "float64", ">i8", "int64", "complex128", "bool"]).map(lambda d: np.zeros(3, d)),
    st.just(np.zeros((2, 2), np.int64)),
    st.just(np.zeros(8, np.int64)[::2]),
    st.builds(released),
    st.just(object()),
    st.just(np.int64(3)),
    st.just(int64(2**62, 2**62, 2**62, 2**62)),
    st.just(int64(2**63 - 1, -(2**63))),
)
TARGETS = st.one_of(
    ODD,
    st.integers(0, 5000).map(bytearray),
    st.builds(lambda: read_only(np.zeros(100, np.int64))),
    st.builds(lambda: np.zeros((3, 10), np.int64)),
    st.builds(lambda: np.zeros((3, 10), np.int32)),
    st.builds(lambda: np.zeros((3, 10), np.int64).T),
    st.builds(lambda: np.zeros((3, 10), np.uint64)),
)


def outcome(call: Any) -> tuple[str, Any]:
    try:
        return "fine", call()
    except REFUSED as problem:
        return "refused", str(problem).split(",")[0]


@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    fds=ODD,
    offsets=ODD,
    lengths=ODD,
    targets=ODD,
    direct=ODD,
    into=TARGETS,
    drop=st.one_of(st.integers(-1, 3), ODD),
    good=st.sets(st.integers(0, 6)),
)
def test_gather_refuses_or_reads(
    queues: dict[str, Any],
    fd: int,
    fds: Any,
    offsets: Any,
    lengths: Any,
    targets: Any,
    direct: Any,
    into: Any,
    drop: Any,
    good: set[int],
) -> None:
    """``good`` arguments are replaced by valid ones, so that every check is reached alone."""
    runs = Runs(
        fd if 0 in good else fds,
        int64(0, 7) if 1 in good else offsets,
        5 if 2 in good else lengths,
        None if 3 in good else targets,
        None if 4 in good else direct,
    )
    into, drop = bytearray(100) if 5 in good else into, KEEP if 6 in good else drop
    outcome(lambda: native().fill_mapped(bytes(100), runs, into))
    found = {way: outcome(lambda queue=queue: queue.fill(runs, into, drop))[0] for way, queue in queues.items()}
    assert len(set(found.values())) == 1


@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    x=TARGETS, y=TARGETS, length=ODD, source=ODD, vocab=ODD, lengths=ODD, targets=ODD, good=st.sets(st.integers(0, 6))
)
def test_windows_refuse_or_read(
    ahead: Any,
    fd: int,
    x: Any,
    y: Any,
    length: Any,
    source: Any,
    vocab: Any,
    lengths: Any,
    targets: Any,
    good: set[int],
) -> None:
    pair = Pair(
        np.zeros((3, 10), np.int64) if 0 in good else x,
        np.zeros((3, 10), np.int64) if 1 in good else y,
        10 if 2 in good else length,
        "uint16" if 3 in good else source,
        None if 4 in good else vocab,
    )
    runs = Runs(fd, int64(0, 7, 100), 22 if 5 in good else lengths, None if 6 in good else targets)
    outcome(lambda: native().fill_mapped(bytes(1000), runs, pair))
    if outcome(lambda: ahead.start(runs, pair, KEEP))[0] == "fine":
        ahead.wait()
    outcome(lambda: native().queue("read").fill(runs, pair, KEEP))


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(way=st.one_of(ODD, st.sampled_from(["read", "announce", "uring", "aio"])), depth=ODD, staging=ODD, alignment=ODD)
def test_queues_refuse_or_open(way: Any, depth: Any, staging: Any, alignment: Any) -> None:
    for make in (native().queue, native().lane):
        outcome(lambda make=make: make(way, depth=depth, staging=staging, alignment=alignment))
        outcome(lambda make=make: make("aio", depth=2, staging=staging, alignment=alignment))


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(numbers=TARGETS, n=ODD, constants=ODD, tweaks=ODD, good=st.sets(st.integers(0, 3)))
def test_permute_refuses_or_maps(numbers: Any, n: Any, constants: Any, tweaks: Any, good: set[int]) -> None:
    outcome(
        lambda: native().permute(
            np.arange(5, dtype=np.uint64) if 0 in good else numbers,
            100 if 1 in good else n,
            np.arange(16, dtype=np.uint64) if 2 in good else constants,
            None if 3 in good else tweaks,
            False,
        )
    )


def test_offsets_that_are_the_target_itself_cannot_lead_astray(fd: int) -> None:
    """The bytes that arrive overwrite the numbers that said where to write."""
    offsets = np.arange(64, dtype=np.int64)
    runs = Runs(fd, offsets, 8, offsets * 8)
    expected = [int.from_bytes(os.pread(fd, 8, offset), "little", signed=True) for offset in range(64)]
    for way in ("read", "announce", "aio", "uring"):
        if not native().unavailable()[way]:
            here = offsets.copy()
            assert isinstance(native().queue(way).fill(runs._replace(offsets=here), here, KEEP), int)
            assert here.tolist() == expected


@pytest.mark.parametrize("arguments", [(), (1,), (1, 2, 3, 4), (Runs(0, int64(0), 1), bytearray(1))])
def test_the_number_of_arguments_is_checked(arguments: tuple[Any, ...]) -> None:
    queue: Any = native().queue("read")
    with pytest.raises(TypeError):
        queue.fill(*arguments)


def test_messages_name_the_argument_and_the_way_out(fd: int) -> None:
    for engine in (native(), PYTHON):
        with pytest.raises(ValueError, match=r"targets: expected every run inside the target, got 5\. Check"):
            engine.queue("read").fill(Runs(fd, int64(0, 1), 5), bytearray(9), KEEP)
    with pytest.raises(
        TypeError, match=r"offsets: expected a one-dimensional array of 8-byte integers, got format 'd'"
    ):
        native().queue("read").fill(Runs(fd, np.zeros(1), 5), bytearray(9), KEEP)
    with pytest.raises(ValueError, match="closed"):
        queue = native().queue("read")
        queue.close()
        queue.fill(Runs(fd, int64(0), 5), bytearray(9), KEEP)
    with pytest.raises(ValueError, match="expected read, announce, aio or uring"):
        native().queue("mmap")
