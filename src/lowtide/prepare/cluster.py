"""The Ray engine: the same sections, encoded by tasks of a Ray cluster into the same bytes in the same order.

A task is a few neighbouring sections and streams their blocks, some at a time, because a task costs this process a
millisecond and an object another; a bounded number of tasks is under way, and each stream pauses while nobody takes
from it. Ray repeats the tasks of a lost worker or node, and as a block is a pure function of its section, a second try
gives the same bytes. This process takes the blocks in order and writes, so the output lies where the command runs;
every node must see the inputs under the same paths and have Lowtide installed.

Costs the blocks under way in Ray's object store, which spills to disk when it is full. The journal handles restarts,
as for the local engine. ray is imported only when this engine is asked for.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator
from typing import Any

from lowtide.errors import LowtideError
from lowtide.prepare.encoding import BlockEncoder, EncodedBlock, Recipe
from lowtide.prepare.inputs.sections import InputSection

_TRIES = 8  # how often a task is run again when its worker or node is lost
_TASK = 8 << 20  # bytes of input for one task; a compressed file is one, whatever its size
_TOGETHER = 4 << 20  # bytes of ids that travel as one object, or a little more
_AHEAD = 4  # objects of one task that may wait before it pauses: mostly all it has
_encoders: dict[str, BlockEncoder] = {}  # kept in a Ray worker process: loading a tokenizer costs more than a section


def encoded_by_ray(
    sections: Iterator[InputSection], recipe: Recipe, skip: int, address: str, tasks: int
) -> Iterator[EncodedBlock]:
    """Every block in order. ``tasks``: how many are under way at once; 0: twice the cluster's processors."""
    ray = _ray()
    with _connected(ray, address):
        options = {
            "num_returns": "streaming",
            "max_retries": _TRIES,
            "_generator_backpressure_num_objects": _AHEAD,
        }
        encode = ray.remote(_blocks).options(**options)
        shared, key = ray.put(recipe), f"{recipe.encoder}-{recipe.vocabulary.fingerprint}-{hash(recipe.request)}"
        running, runs = deque[Any](), _runs(sections)
        while True:
            most = tasks or 2 * max(1, int(ray.cluster_resources().get("CPU", 1)))
            while len(running) < most and (some := next(runs, None)) is not None:
                running.append(encode.remote(some, shared, key, skip))
                skip = 0
            if not running:
                return
            yield from _taken(ray, running.popleft())


def _runs(sections: Iterator[InputSection]) -> Iterator[list[InputSection]]:
    """Neighbouring sections, as many as make a task."""
    run, size = list[InputSection](), 0
    for section in sections:
        run.append(section)
        size += section.weight or sum(one.size for one in section.inputs)
        if section.streamed or size >= _TASK:
            yield run
            run, size = [], 0
    if run:
        yield run


def _blocks(sections: list[InputSection], recipe: Recipe, key: str, skip: int) -> Iterator[list[EncodedBlock]]:
    """The blocks of these sections without the first ``skip``, some at a time."""
    encoder = _encoders.get(key)
    if encoder is None:
        _encoders.clear()
        encoder = _encoders[key] = BlockEncoder(recipe)
    some, size = list[EncodedBlock](), 0
    for section in sections:
        for block in encoder.blocks(section, skip):
            some.append(block)
            size += block.ids.nbytes
            if size >= _TOGETHER:
                yield some
                some, size = [], 0
        skip = 0
    if some:
        yield some


def _taken(ray: Any, stream: Any) -> Iterator[EncodedBlock]:
    try:
        for reference in stream:
            yield from ray.get(reference)
    except ray.exceptions.RayTaskError as problem:
        if isinstance(problem.cause, (LowtideError, OSError, ValueError)):
            raise problem.cause from None
        raise LowtideError(
            f"ray: expected a piece of the corpus, got {' '.join(str(problem.cause).split())[:200]}. Check that every "
            "node has the same Lowtide and sees the inputs."
        ) from problem
    except ray.exceptions.RayError as problem:
        raise LowtideError(
            f"ray: expected the cluster to finish a task in {_TRIES} tries, got {type(problem).__name__}. "
            "Check the cluster with 'ray status' and run the same command again: it continues where it stopped."
        ) from problem


@contextlib.contextmanager
def _connected(ray: Any, address: str) -> Iterator[None]:
    """A cluster: the one at ``address``, the one this process is already in, or one for this job alone."""
    if ray.is_initialized():
        yield
        return
    try:
        ray.init(address=address or None, log_to_driver=False, include_dashboard=False if not address else None)
    except (ConnectionError, RuntimeError, ValueError) as problem:
        raise LowtideError(
            f"ray: expected a cluster at {address or 'this machine'}, got: {' '.join(str(problem).split())[:160]}. "
            "Start one with 'ray start --head', or leave --address out."
        ) from None
    try:
        yield
    finally:
        ray.shutdown()


def _ray() -> Any:
    try:
        import ray
    except ModuleNotFoundError:
        raise LowtideError(
            "--engine ray: expected ray, got none. Install it with: pip install 'lowtide[ray]'"
        ) from None
    return ray
