"""Locks and caches that are renewed in a forked child.

A child inherits every lock as it was at the fork, even one held by a thread of the parent, which nobody in the child
will ever release. So whatever has a lock or descriptors registers here, and is renewed in the child before
the child runs a line of its own.

Costs a weak reference per object. Nothing is done in the parent.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Protocol


class Renewable(Protocol):
    """Something with state that must not be inherited."""

    def renew_after_fork(self) -> None: ...


_registered: set[weakref.ref[Renewable]] = set()


def renew_in_children(thing: Renewable) -> None:
    """Call ``thing.renew_after_fork()`` in every forked child in which it still exists."""
    # `discard` as the callback is one atomic call, so a finalizer may run it anywhere, even in the middle of `add`.
    _registered.add(weakref.ref(thing, _registered.discard))


def _renew_all() -> None:
    for reference in list(_registered):
        thing = reference()
        if thing is not None:
            thing.renew_after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_all)


class Turn:
    """One thread at a time: ``with turn.lock: ...``. A forked or unpickled one begins unlocked.

    The lock lets its own thread in again: a signal handler or debugger that raises between the end of a block and the
    release would otherwise leave the thread waiting for itself.
    """

    __slots__ = ("__weakref__", "lock")

    def __init__(self) -> None:
        self.lock = threading.RLock()
        renew_in_children(self)

    def renew_after_fork(self) -> None:
        self.lock = threading.RLock()

    def __reduce__(self) -> tuple[type[Turn], tuple[()]]:
        return Turn, ()
