"""What is held and which kind of memory grew: ``measure/`` -> samples -> ``judge/``, each pure but the first.

``watch`` takes samples beside the work, ``traces`` keeps them on disk, ``judge`` says what they mean;
``process_memory`` is one cheap look at one process.
"""

from lowtide.memory.judge.findings import (
    BudgetOutcome,
    Grower,
    Growth,
    HeldMemory,
    KindHeld,
    Owner,
    Risk,
    Verdict,
)
from lowtide.memory.judge.verdict import judge
from lowtide.memory.measure.process import process_memory
from lowtide.memory.samples import (
    GREW,
    HELD,
    KINDS,
    MEANING,
    CgroupSample,
    Ended,
    FileGroup,
    FileSample,
    ProcessMemory,
    ProcessSample,
    Sample,
    Trace,
)
from lowtide.memory.traces import from_dict, held_dict, to_dict
from lowtide.memory.watch import watch

__all__ = [
    "GREW",
    "HELD",
    "KINDS",
    "MEANING",
    "BudgetOutcome",
    "CgroupSample",
    "Ended",
    "FileGroup",
    "FileSample",
    "Grower",
    "Growth",
    "HeldMemory",
    "KindHeld",
    "Owner",
    "ProcessMemory",
    "ProcessSample",
    "Risk",
    "Sample",
    "Trace",
    "Verdict",
    "from_dict",
    "held_dict",
    "judge",
    "process_memory",
    "to_dict",
    "watch",
]
