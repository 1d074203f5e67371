"""What is held and which kind of memory grew: ``measure/`` -> samples -> ``judge/``, each pure but the first.

``watch`` takes samples beside the work, ``traces`` keeps them on disk, ``judge`` says what they mean;
``process_memory`` is one cheap look at one process.
"""

from lowtide.memory.judge.findings import Verdict
from lowtide.memory.judge.verdict import judge
from lowtide.memory.measure.process import process_memory
from lowtide.memory.samples import KINDS, Sample, Trace
from lowtide.memory.watch import watch

__all__ = ["KINDS", "Sample", "Trace", "Verdict", "judge", "process_memory", "watch"]
