"""A whole run: open the data, take up a checkpoint, step, evaluate, save, and say how it went.

The loop is a list of things that happen at known steps; ``resume`` puts everything where the checkpoint left it, so
the steps after it are those of a run that was never interrupted. Everything on disk is written by rank 0.
"""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from lowtide.errors import LowtideError
from lowtide.prepare import Control
from lowtide.prepare.tokenizers.spelling import NumberWords, words_of
from lowtide.report.png import check, write_panels
from lowtide.train import checkpoints
from lowtide.train.checkpoints import Branch, Past, SaveError, only_run, reason
from lowtide.train.data import control_of, open_data, with_corpus
from lowtide.train.gauge import SETTLE_STEPS, BudgetVerdict, CurvePoint, Gauge, MemoryNow, kept_heap, panels, thinned
from lowtide.train.ledger import Ledger
from lowtide.train.model import Compute, choose_compute
from lowtide.train.ranks import World, described, joined
from lowtide.train.settings import Settings, first_corpus
from lowtide.train.signals import StopRequest
from lowtide.train.telling import METRICS, Evaluated, Facts, RunOutcome, RunProgress, Stepped, Told
from lowtide.train.trained import WEIGHTS, write_weights
from lowtide.train.trainer import Trainer, learning_rate


def run(settings: Settings, progress: RunProgress, resume: Path | None = None) -> RunOutcome:
    """Train to ``max_iters`` or until asked to stop; ``resume`` is the checkpoint to go on from."""
    started = time.monotonic()
    compute = choose_compute(settings.device, settings.dtype)
    here = described()
    with ExitStack() as held:
        held.enter_context(kept_heap())
        told = RunProgress()
        if here.is_first:
            told = Told(progress, Path(settings.out_dir), tensorboard=settings.tensorboard)
            held.callback(told.close)
        stop = held.enter_context(StopRequest(told.note, alone=here.world == 1))
        with joined(here, compute.device, settings.rank_timeout) as world:
            if world.is_first:  # inside: when it is refused, the other ranks end with this one
                held.enter_context(only_run(Path(settings.out_dir)))
            compute = choose_compute(settings.device, settings.dtype, world.local_rank)
            one, verdict = _trained(_Run(settings, compute, world, told, stop, started), resume)
        return one.end(verdict)


def _trained(one: _Run, resume: Path | None) -> tuple[_Run, BudgetVerdict]:
    """All that needs the other ranks. A frame of its own: what it refers to must be gone when an error leaves it."""
    one.whole(resume)
    verdict = one.verdict()
    one.trainer.leave_ranks()
    return one, verdict


class _Run:
    """The state of one run beside the trainer's: clock, curve, memory."""

    def __init__(
        self, settings: Settings, compute: Compute, world: World, progress: RunProgress, stop: StopRequest, began: float
    ) -> None:
        self.world, self.progress, self.stop = world, progress, stop
        self.settings = settings = self._with_corpus(settings)
        self.directory = Path(settings.out_dir)
        self.branch = Branch(self.directory)
        self.left_branch = 1  # that of the checkpoint this run goes on from
        self.data = open_data(settings)
        self.trainer = Trainer(settings, compute, world, self.data)
        self.trainer.asked_to_stop = lambda: stop.number
        self.gauge = Gauge(self.data.files, self.trainer.plan.budget)
        self.compute = compute
        self.unigram = self.data.unigram()
        self.started = self.loop_started = began
        self.seconds_before = 0.0  # of the runs that this one resumes
        self.seconds_training = 0.0
        self.tokens = 0
        self.val_loss, self.val_step = math.nan, -1
        self.best = math.inf  # the lowest val loss of a saved checkpoint
        self.points: list[CurvePoint] = []
        self.first_step = 0
        self.kept_ledger = False  # by the run that this one resumes
        self.stopping = 0

    def _with_corpus(self, settings: Settings) -> Settings:
        """Rank 0 first: it may have to prepare the corpus that the others then find."""
        if self.world.is_first:
            settings = with_corpus(settings, self.progress.note)
        self.world.from_first(True)
        return with_corpus(settings, self.progress.note)

    def whole(self, resume: Path | None) -> None:
        if resume is not None:
            self._take_up(resume)
        elif self.world.is_first:
            self._clear_the_way()
        self.progress.tell(self._facts())
        for note in self.data.notes:
            self.progress.note(note)
        if self.kept_ledger and not self.settings.ledger:
            self.progress.note("the run before kept a ledger and this one keeps none: state --ledger to continue it")
        if self.trainer.step >= self.settings.max_iters:
            self.progress.note(f"no steps left of {self.settings.max_iters:,}: continue with a higher --max-iters")
        self.stop.stepping()
        with self._ledger():
            self._loop()
        self._evaluate()
        self._save(last=True)

    def _take_up(self, resume: Path) -> None:
        contents = checkpoints.load_whole(resume)
        past = contents["run"]
        self.trainer.restore(resume, contents)
        self.val_loss, self.val_step = past["val_loss"], past["val_step"]
        self.best = past.get("best", math.inf)
        self.seconds_before = past["seconds"]
        self.points = [CurvePoint(*numbers) for numbers in past["points"]]
        self.first_step = self.trainer.step
        self.kept_ledger = bool(contents["settings"].get("ledger"))
        if self.world.is_first:
            checkpoints.tidy(self.directory)
            self.branch = checkpoints.continued(self.directory, resume, past)
            self.left_branch = checkpoints.branch_of(Path(past.get("file", resume.name)))
            self._say_which_branch(resume)

    def _say_which_branch(self, resume: Path) -> None:
        number = self.branch.number
        if number > 1 and number != self.left_branch:
            self.progress.note(
                f"{resume} is not the newest checkpoint of its branch: this run saves as branch {number}, "
                f"in files ending in -{number}.pt, and leaves the others as they are"
            )

    def _clear_the_way(self) -> None:
        checkpoints.tidy(self.directory)
        aside = checkpoints.set_aside(self.directory, also=(METRICS,))
        if aside is not None:
            self.progress.note(
                f"moved an earlier run's checkpoints to {aside}; --resume would have continued from them"
            )

    @contextmanager
    def _ledger(self) -> Iterator[None]:
        if not self.settings.ledger:
            yield
            return
        with Ledger(self.settings.ledger, write=self.world.is_first) as ledger:
            ledger.began(self.first_step, self.left_branch, self.branch.number)
            self.trainer.ledger = ledger
            yield
            self.trainer.ledger = None

    def _loop(self) -> None:
        trainer, settings = self.trainer, self.settings
        self.loop_started = time.monotonic()
        settle_at = self.first_step + max(1, min(SETTLE_STEPS, (settings.max_iters - self.first_step) // 2))
        while trainer.step < settings.max_iters and not self._must_stop():
            if trainer.step % settings.eval_interval == 0:
                self._evaluate()
            if trainer.step % settings.saves_every == 0 and trainer.step > self.first_step:
                self._save()
            if trainer.step == settle_at:
                self.gauge.settle()
            began = time.perf_counter()
            if not trainer.train_step():
                continue  # asked to stop on the way
            self.seconds_training += time.perf_counter() - began
            self.tokens += settings.rows_per_step * settings.block_size
            if trainer.step % settings.log_interval == 0:
                self._log()

    def _must_stop(self) -> bool:
        self.stopping = self.world.any(self.stop.number)  # ranks must agree, or some would wait for the others
        return bool(self.stopping)

    def _evaluate(self) -> None:
        """Once for each step, and not for a run that must end soon."""
        if self.val_step == self.trainer.step or self.stopping:
            return
        val_loss = self.trainer.val_loss()
        if val_loss is None:  # asked to stop on the way
            self._must_stop()
            return
        self.val_loss, self.val_step = val_loss, self.trainer.step
        self._remember(math.nan, self.val_loss, self.gauge.read())
        self.progress.tell(Evaluated(self.trainer.step, self.val_loss, self._seconds()))

    def _log(self) -> None:
        loss, reading, step = self.trainer.mean_loss(), self.gauge.read(), self.trainer.step
        self._remember(loss, math.nan, reading)
        steps = max(1, step - self.first_step)
        left = (self.settings.max_iters - step) * (time.monotonic() - self.loop_started) / steps
        rate, pace, wait = learning_rate(step - 1, self.settings), self._tokens_per_s(), self._data_wait()
        mixed = self.data.mixed
        shares, epochs = (None, None) if mixed is None else mixed.at(self.trainer.rows_done, self.settings.block_size)
        seconds, loader = self._seconds(), self.trainer.loader_figures()
        self.progress.tell(Stepped(step, loss, rate, pace, wait, left, reading, shares, epochs, seconds, loader))

    def _remember(self, loss: float, val_loss: float, reading: MemoryNow) -> None:
        held = (reading.anon, reading.mapped, reading.cache, reading.kept)
        self.points = thinned([*self.points, CurvePoint(self._seconds(), self.trainer.step, loss, val_loss, *held)])

    def _save(self, *, last: bool = False) -> None:
        """Save on rank 0. A run continues if a checkpoint on the way cannot be written. The last one of a finished run
        must be written; a run that was asked to stop stops in any case."""
        partial_loss = self.trainer.partial_loss()
        if not self.world.is_first:
            return
        is_best = self.val_step == self.trainer.step and self.val_loss <= self.best
        past: Past = {
            "partial_loss": partial_loss,
            "val_loss": self.val_loss,
            "val_step": self.val_step,
            "best": self.val_loss if is_best else self.best,
            "seconds": self._seconds(),
            "points": [list(point) for point in self.points],
        }
        try:
            self.branch.save(self.trainer.contents(past), self.settings.keep, is_best=is_best)
        except SaveError as problem:
            if last and not self.stopping:
                raise
            goes_on = f"stopped after step {self.trainer.step}" if last else "training goes on"
            self.progress.note(f"not saved, {goes_on}: {problem}")
            return
        self.best = past["best"]
        if last and self.stopping:
            self.progress.note(
                f"stopped after step {self.trainer.step} and saved; continue with: {self._how_to_go_on()}"
            )

    def verdict(self) -> BudgetVerdict:
        """That of the rank that grew most."""
        return max(self.world.gather(self.gauge.verdict()), key=lambda one: one.peak.held - one.settled.held)

    def end(self, verdict: BudgetVerdict) -> RunOutcome:
        """What rank 0 does alone, when all is trained and saved."""
        sample = picture = ""
        control = None
        if self.world.is_first and not self.stopping:
            sample, control = self._sample(), self._control()
            picture = self._draw(verdict, control)
            self._write_weights()
        outcome = RunOutcome(
            steps=self.trainer.step,
            val_loss=self.val_loss,
            unigram=self.unigram,
            tokens_per_s=self._tokens_per_s(),
            data_wait=self._data_wait(),
            seconds=time.monotonic() - self.started,
            verdict=verdict,
            sample=sample,
            picture=picture,
            stopped_by=self.stopping,
            control=control,
        )
        self.progress.tell(outcome)
        return outcome

    def _sample(self) -> str:
        if not self.settings.sample_tokens:
            return ""
        tokens = self.trainer.sample(self.settings.sample_tokens)
        try:
            return words_of(first_corpus(vars(self.settings)), self.data.vocab_size).text(tokens)
        except (LowtideError, OSError) as problem:  # a tokenizer that cannot be read does not spoil a run
            self.progress.note(f"the sample is in ids: {problem}")
            return NumberWords().text(tokens)

    def _write_weights(self) -> None:
        if not self.settings.weights:
            return
        try:
            if not write_weights(self.directory / WEIGHTS, self.trainer.model, self.trainer.step):
                self.progress.note("no weights.safetensors: `pip install safetensors` installs what writes it")
        except OSError as problem:
            self.progress.note(f"no weights.safetensors: {reason(problem)}; the checkpoint has the weights")

    def _control(self) -> Control | None:
        try:
            return control_of(self.settings, self.data.train_path)
        except (LowtideError, OSError) as problem:  # a comparison that cannot be made does not spoil a run
            self.progress.note(f"no control: {problem}")
            return None

    def _draw(self, verdict: BudgetVerdict, control: Control | None) -> str:
        if not self.settings.picture:
            return ""
        path = self.directory / "train.png"
        try:
            check()
        except LowtideError:
            self.progress.note("no picture: matplotlib is not installed; `pip install 'lowtide[report]'` brings it")
            return ""
        write_panels(path, panels(self.points, self.unigram, verdict, control))
        return str(path)

    def _facts(self) -> Facts:
        return Facts(
            parameters=self.trainer.model.parameters_count(),
            compute=str(self.compute),
            world=self.world.world,
            data=self.data.name,
            train_tokens=self.data.sizes[0],
            val_tokens=self.data.sizes[1],
            vocab_size=self.data.vocab_size,
            unigram=self.unigram,
            rows_per_step=self.settings.rows_per_step,
            block_size=self.settings.block_size,
            budget=self.trainer.plan.budget,
            reader_holds=self.trainer.plan.anon + self.trainer.plan.mapped,
            strategy=self.trainer.plan.strategy,
            first_step=self.first_step,
            max_iters=self.settings.max_iters,
            seconds=self.seconds_before,
        )

    def _how_to_go_on(self) -> str:
        launcher = "lowtide" if self.world.world == 1 else f"torchrun --nproc-per-node {self.world.world} -m lowtide"
        ledger = f" --ledger {shlex.quote(self.settings.ledger)}" if self.settings.ledger else ""
        return f"{launcher} train --resume --out-dir {shlex.quote(self.settings.out_dir)}{ledger}"

    def _seconds(self) -> float:
        return self.seconds_before + time.monotonic() - self.started

    def _tokens_per_s(self) -> float:
        return self.tokens / self.seconds_training if self.tokens else 0.0

    def _data_wait(self) -> float:
        return self.trainer.seconds_waiting / self.seconds_training if self.tokens else 0.0
