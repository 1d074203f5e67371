"""A small GPT and its training loop, on batches that Lowtide reads.

Reading order: ``run.py`` (a whole run) -> ``trainer.py`` (one step) -> ``data.py`` (what is read), ``model.py`` and
``checkpoints.py`` (what is saved); ``settings.py`` has every number. ``ranks.py``, ``signals.py`` and ``ledger.py``
make it safe to leave alone; ``gauge.py`` measures and ``telling.py`` says how it goes. ``generate.py`` and ``peek.py``
look at a run afterwards. Only this package and ``lowtide.torch`` import torch.
"""

from lowtide.train.model import GPT, Shape
from lowtide.train.run import run
from lowtide.train.settings import Settings
from lowtide.train.telling import RunOutcome

__all__ = ["GPT", "RunOutcome", "Settings", "Shape", "run"]
