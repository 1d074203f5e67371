"""Long runs that pass through the page cache: told to the kernel before, dropped behind.

One idea: a local shuffle reads one stretch of a file in any order, then the next. Told of the whole stretch, the kernel
brings it in as a sequential reader would; the scattered reads then find it in the page cache. Dropping is done for the
stretch, not for each read, which would take pages from its neighbours. Costs one system call per call and file.
"""

from __future__ import annotations

from collections.abc import Iterator

from lowtide.storage.descriptors import KEPT, Descriptor
from lowtide.storage.native_read import NativeRead
from lowtide.storage.read import announce, drop_pages
from lowtide.storage.spans import Spans
from lowtide.storage.store import Store


def keeping(store: Store) -> Store:
    """The same bytes, budget and buffers for a reader that tends the page cache itself; closed with ``store``."""
    store.require_open()
    if store.keeping is None:
        strategy, _, engine = store.asked
        made = Store(store.extents, strategy=strategy, cache="keep", budget=store.budget, engine=engine)
        made.pool = store.pool  # free buffers of two pools would keep each other from the budget
        if isinstance(made.strategy, NativeRead):
            made.pool.may_reclaim(made.strategy)
        store.keeping = made
    return store.keeping


def announce_run(store: Store, offset: int, length: int) -> None:
    """Tell the kernel that these consecutive bytes will be read, in any order."""
    if not store.files.in_memory:
        for held, spans in _runs(store, offset, length):
            announce(held, spans)


def drop_run(store: Store, offset: int, length: int) -> None:
    """Evict these consecutive bytes from the page cache, whoever read them."""
    for held, spans in _runs(store, offset, length):
        places = zip(spans.file_of_each(), spans.offsets.tolist(), spans.length_of_each(), strict=True)
        for file, start, size in places:
            drop_pages(held[file].number, start, size, sequential=True)


def _runs(store: Store, offset: int, length: int) -> Iterator[tuple[dict[int, Descriptor], Spans]]:
    if length > 0:
        for spans, _ in store.one_run(offset, length).few_files(KEPT.together):
            yield store.files.descriptors(spans.files, scattered=True), spans
