"""What is held and which kind of memory grew: counters -> samples -> verdict, each pure but the first.

``process_memory`` is one cheap look at one process. ``samples.py`` has what is measured, ``findings.py`` what it means,
``verdict.py`` the judgement.
"""

from lowtide.memory.findings import (
    BudgetOutcome,
    Grower,
    Growth,
    HeldMemory,
    KindHeld,
    Owner,
    Risk,
    Verdict,
)
from lowtide.memory.plain_values import from_dict, held_dict, to_dict
from lowtide.memory.process import process_memory
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
from lowtide.memory.verdict import judge
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
