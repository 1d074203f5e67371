"""A small GPT and its training loop, on batches that Lowtide reads.

Reading order: ``settings.py`` (every number) -> ``halves.py`` (what is read) -> ``model.py`` ->
``trainer.py`` (one step) -> ``run.py`` (all of them). ``checkpoint.py``, ``ranks.py``, ``signals.py`` and
``ledger.py`` make it safe to leave alone; ``gauge.py``, ``progress.py``, ``live.py`` and ``curves.py`` say
how it goes. Only this package and ``lowtide.torch`` import torch.
"""

from lowtide.train.model import GPT, Shape
from lowtide.train.progress import RunOutcome
from lowtide.train.run import run
from lowtide.train.settings import Settings

__all__ = ["GPT", "RunOutcome", "Settings", "Shape", "run"]
