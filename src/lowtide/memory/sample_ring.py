"""Samples in bounded memory, however long the watching lasts.

One idea: when the ring is full, every other sample of the older half of its time goes, but each kind's highest of a
stretch stays; the newest are kept whole. So a week has the same number of samples as an hour, finer towards its end,
and no peak is lost. Cost: about 8 KB per sample.
"""

from __future__ import annotations

from collections.abc import Iterable

from lowtide.memory.samples import KINDS, Sample

MOST = 1200
_NEWEST = 400  # never thinned: 100 seconds at the default rate
_STRETCH = 32


class Ring:
    """A list of samples that thins itself."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._samples: list[Sample] = []
        self.taken = 0  # samples ever added

    def __len__(self) -> int:
        return len(self._samples)

    def add(self, sample: Sample) -> None:
        self._samples.append(sample)
        self.taken += 1
        if len(self._samples) > self._most:
            cut = len(self._samples) - min(_NEWEST, self._most // 3)
            self._samples = [*_thinned(self._samples[:cut]), *self._samples[cut:]]

    def samples(self) -> tuple[Sample, ...]:
        return tuple(self._samples)

    def last(self) -> Sample | None:
        return self._samples[-1] if self._samples else None


def _thinned(samples: list[Sample]) -> Iterable[Sample]:
    """About half of them: the first, every other, and of each stretch every kind's highest."""
    keep = set(range(0, len(samples), 2)) if len(samples) < 2 * _STRETCH else _spread(samples)
    return [samples[place] for place in sorted({0, *keep})]


def _spread(samples: list[Sample]) -> set[int]:
    """Even in time, not in number: what was thinned before is not thinned again before the rest has caught up."""
    keep: set[int] = set()
    begin, end = samples[0].seconds, samples[-1].seconds
    step = max(1e-9, (end - begin) / (len(samples) // 2))
    after = begin - step
    for place, sample in enumerate(samples):
        if sample.seconds - after >= step:
            keep.add(place)
            after = sample.seconds
    for start in range(0, len(samples), len(samples) // (_STRETCH // 4)):
        stretch = range(start, min(len(samples), start + len(samples) // (_STRETCH // 4)))
        keep.update(max(stretch, key=lambda place: samples[place].of(kind)) for kind in KINDS)
        keep.add(max(stretch, key=lambda place: samples[place].total))
    return keep
