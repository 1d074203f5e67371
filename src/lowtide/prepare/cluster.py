"""The Ray engine: the same splits, encoded by tasks of a Ray cluster, the same bytes in the same order.

One idea: a task is one split and gives its pieces as a stream; a bounded number of tasks is under way, and each stream
stops by itself while nobody takes from it. Ray does again what a lost worker or node was doing, and as a piece is a
pure function of its split, a second try gives the same bytes. This process takes the pieces in order and writes, so
the output lies where the command runs; every node must see the inputs under the same paths and have Lowtide installed.

Costs the pieces under way in Ray's object store, which spills to disk when it is full. Restarting is the journal's
work, as for the local engine. ray is imported here alone.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator
from typing import Any

from lowtide.errors import LowtideError
from lowtide.prepare.pieces import Piece, Recipe, Worker
from lowtide.prepare.splits import Split

_TRIES = 8  # of a task whose worker or node is lost
_PIECES_AHEAD = 8  # of one split that wait before it stops
_workers: dict[str, Worker] = {}  # of a Ray worker process: loading a tokenizer costs more than a split


def run_ray(splits: Iterator[Split], recipe: Recipe, skip: int, address: str, tasks: int) -> Iterator[Piece]:
    """Every piece in order. ``tasks``: how many splits are under way; 0: twice the cluster's processors."""
    ray = _ray()
    with _connected(ray, address):
        options = {
            "num_returns": "streaming",
            "max_retries": _TRIES,
            "_generator_backpressure_num_objects": _PIECES_AHEAD,
        }
        encode = ray.remote(_pieces).options(**options)
        shared, key = ray.put(recipe), f"{recipe.encoder}-{recipe.vocabulary.fingerprint}-{hash(recipe.request)}"
        running: deque[Any] = deque()
        while True:
            most = tasks or 2 * max(1, int(ray.cluster_resources().get("CPU", 1)))
            while len(running) < most and (split := next(splits, None)) is not None:
                running.append(encode.remote(split, shared, key, skip))
                skip = 0
            if not running:
                return
            yield from _taken(ray, running.popleft())


def _pieces(split: Split, recipe: Recipe, key: str, skip: int) -> Iterator[Piece]:
    worker = _workers.get(key)
    if worker is None:
        _workers.clear()
        worker = _workers[key] = Worker(recipe)
    yield from worker.pieces(split, skip)


def _taken(ray: Any, stream: Any) -> Iterator[Piece]:
    try:
        for reference in stream:
            yield ray.get(reference)
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
            "Check the cluster with 'ray status' and run the same command again: it goes on where it stopped."
        ) from problem


@contextlib.contextmanager
def _connected(ray: Any, address: str) -> Iterator[None]:
    """A cluster: the one at ``address``, the one this process is already in, or one for this run alone."""
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
