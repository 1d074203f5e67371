"""Which kind of memory grew: counters -> samples -> verdict, each pure but the first.

``process_memory`` is one cheap look at one process. ``model.py`` has the values that travel, ``verdict.py``
the judgement.
"""

from lowtide.memory.model import (
    GREW,
    HELD,
    KINDS,
    MEANING,
    BudgetOutcome,
    CgroupSample,
    FileSample,
    Growth,
    ProcessMemory,
    ProcessSample,
    Sample,
    Trace,
    Verdict,
    from_dict,
    to_dict,
)
from lowtide.memory.process import process_memory
from lowtide.memory.verdict import judge
from lowtide.memory.watch import watch

__all__ = [
    "GREW",
    "HELD",
    "KINDS",
    "MEANING",
    "BudgetOutcome",
    "CgroupSample",
    "FileSample",
    "Growth",
    "ProcessMemory",
    "ProcessSample",
    "Sample",
    "Trace",
    "Verdict",
    "from_dict",
    "judge",
    "process_memory",
    "to_dict",
    "watch",
]
