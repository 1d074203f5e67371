"""Datasets of whole batches and of rows of arrays, for ``torch.utils.data.DataLoader`` and its stateful sibling.

``FeedDataset`` deals the steps of a feed to the loader's workers in turn. The position of each of them can be
saved: with torchdata's ``StatefulDataLoader`` a run continues in the middle of an epoch without reading anything twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from torch.utils.data import Dataset, IterableDataset, get_worker_info

from lowtide.array import Array
from lowtide.errors import StateError
from lowtide.feed import Feed
from lowtide.reading.rows.iteration import BatchIterator
from lowtide.together import Together
from lowtide.torch.row_streams import row_numbers
from lowtide.torch.shipping import as_tensor, each, refuse_same_data_for_all


class RowDataset(Dataset[Any]):
    """Map-style: item i is row i of an array as a tensor, or of ``together`` as a tuple or dict of them.

    ``DataLoader`` fetches a whole batch in one read, in its own process or in workers, forked or spawned.

    >>> dataset = lowtide.torch.RowDataset(a)
    """

    def __init__(self, rows: Array | Together) -> None:
        if not isinstance(rows, (Array, Together)):
            raise TypeError(
                f"RowDataset: expected an array or together(...), got {type(rows).__name__}. Use lowtide.open(path)."
            )
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        found = each(as_tensor, self.rows[row_numbers(indices)])
        if isinstance(found, dict):
            return [dict(zip(found, row, strict=True)) for row in zip(*found.values(), strict=True)]
        return list(zip(*found, strict=True)) if isinstance(found, tuple) else list(found)


class FeedDataset(IterableDataset[Any]):
    """Iterable-style: the batches of a feed, or of an array's iterator, dealt to the workers in turn.

    Use ``DataLoader(FeedDataset(feed), batch_size=None, num_workers=2)``; the loader returns them in the feed's order.
    Every pass begins where the feed is. torchdata's ``StatefulDataLoader`` saves and loads the state of each worker; a
    feed's own state (``feed.state_dict()``) can be loaded too, with any number of workers.

    >>> dataset = lowtide.torch.FeedDataset(feed)
    """

    def __init__(self, feed: Feed | BatchIterator) -> None:
        if not isinstance(feed, (Feed, BatchIterator)):
            raise TypeError(
                f"FeedDataset: expected a feed or an iterator of rows, got {type(feed).__name__}. "
                "Use FeedDataset(tokens.batches(64, length=1024))."
            )
        refuse_same_data_for_all(feed)
        self.feed = feed
        self._begin: tuple[int, bool] | None = None  # where the next pass begins, and whether that is this worker's own
        self._next: int | None = None  # the position of the step that this process reads next, while it iterates

    def __iter__(self) -> Iterator[Any]:
        worker, workers = _worker()
        begin, own = self._begin or (self.feed.position, False)
        self._begin = None
        mine = islice(self.feed.cursors(begin), 0 if own else worker, None, workers)
        first = next(mine, None)  # now, and not with the first batch: a state may be asked for before it
        self._next = self.feed.last_position if first is None else first
        return self._read(first, mine)

    def _read(self, at: int | None, mine: Iterator[int]) -> Iterator[Any]:
        while at is not None:
            found = each(as_tensor, self.feed.at(at))
            at = next(mine, None)
            self._next = self.feed.last_position if at is None else at
            yield found

    def __len__(self) -> int:
        """Steps of a finite feed, or batches left of a finite iterator; ``TypeError`` where there is no end."""
        return len(self.feed)

    def state_dict(self) -> dict[str, Any]:
        """Where this process's next batch begins, and how batches are dealt: for ``StatefulDataLoader``."""
        at = self._next
        if at is None:
            at = self.feed.position if self._begin is None else self._begin[0]
            return self.feed.state_at(at)
        return {**self.feed.state_at(at), "dealt": self._dealing()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Have the next pass begin where ``state`` was saved, wherever the feed is now.

        ``StateError`` for another number of workers, or another batch size if there were several workers: each
        of them had its own position. Use ``feed.seek(step)`` instead.
        """
        dealt = state.get("dealt") if isinstance(state, dict) else None
        if dealt is not None:
            state = {name: value for name, value in state.items() if name != "dealt"}
            self._check(dealt)
        self._begin = self.feed.checked_position(state), dealt is not None
        self._next = None

    def _dealing(self) -> dict[str, Any]:
        worker, workers = _worker()
        return {"worker": worker, "workers": workers, **self.feed.dealing()}

    def _check(self, dealt: Any) -> None:
        mine = self._dealing()
        if not isinstance(dealt, dict) or set(dealt) != set(mine):
            raise StateError(
                f"state: expected how batches were dealt to workers, got {dealt!r}. The state is damaged: use an older "
                "one."
            )
        alone = dealt["workers"] == mine["workers"] == 1  # then one number says where it was
        for name, value in mine.items():
            if dealt[name] != value and (name == "workers" or not alone):
                raise StateError(
                    f"state: expected {name}={value!r}, got {dealt[name]!r}: each worker has a position of its own. "
                    f"Continue with {name}={dealt[name]!r}, or use feed.seek(steps_done) and a new loader."
                )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_next": None}  # a worker has its own position


def _worker() -> tuple[int, int]:
    info = get_worker_info()
    return (0, 1) if info is None else (info.id, info.num_workers)
