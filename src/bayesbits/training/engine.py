"""The engine: epochs of training steps, with metrics, checkpoints, evaluation and interruption between them.

A `Run` is one phase, search or fine-tuning, from its first or its resumed step to its last. The device is waited for
only where metrics or a checkpoint are written. A checkpoint holds everything that decides what the next step computes:
network, gates, optimizers, states of random generators, and the position in the data.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from bayesbits.functional import compiled
from bayesbits.training import randomness
from bayesbits.training.batches import Batch, Batches
from bayesbits.training.budget_control import SETTLE, BudgetControl
from bayesbits.training.checkpoint import describe_training, load_model, read_checkpoint, versions, write_checkpoint
from bayesbits.training.distributed import Ranks, averaged_quantizer_gradients, full_model_state, local_part
from bayesbits.training.errors import Interrupted, LoaderError, NonFiniteError, StopSignals, TrainingError
from bayesbits.training.execution import Execution
from bayesbits.training.gate_log import FEW_EPOCHS, GateLog
from bayesbits.training.metrics import LossHistory, MetricsLog
from bayesbits.training.optimizers import make_optimizers
from bayesbits.training.phase import Evaluate, Phase, Position, check_budget, find_checkpoint, start_training
from bayesbits.training.step import TrainingStep
from bayesbits.utils.modes import evaluation_mode, modes_restored
from bayesbits.utils.torch_private import BatchNorm

if TYPE_CHECKING:  # imported where training starts: it imports rich
    from bayesbits.training.progress import ProgressReport

Result = TypeVar("Result")


def run(phase: Phase) -> None:
    """Train a phase to its end; see `Run`."""
    from bayesbits.training.progress import ProgressReport

    model = phase.compressor.model
    with ExitStack() as stack:
        stack.enter_context(modes_restored(model))
        if phase.teacher is not None:
            stack.enter_context(evaluation_mode(phase.teacher))
        ranks = stack.enter_context(Ranks(next(model.parameters()).device))
        shown = phase.progress and ranks.is_first
        progress = stack.enter_context(ProgressReport(phase.name, phase.config.epochs, show=shown))
        stack.enter_context(averaged_quantizer_gradients(phase.compressor))
        training = Run(phase, ranks, stack.enter_context(StopSignals()), progress)
        # Weights and activations are compiled apart: half of the quantizers share a compilation.
        quantizers = len(phase.compressor.attachment.quantizers)
        stack.enter_context(compiled.expecting(training.steps * quantizers // 2))
        training.train()


class Run:
    """One phase of training, from where it starts to its end."""

    def __init__(self, phase: Phase, ranks: Ranks, signals: StopSignals, progress: "ProgressReport") -> None:
        self.phase, self.config, self.ranks = phase, phase.config, ranks
        self.signals, self.progress = signals, progress
        self.compressor, self.model = phase.compressor, phase.compressor.model
        self.device = next(self.model.parameters()).device
        self.batches = Batches(phase.loader, self.device, phase.config.epoch_steps)
        length = self.batches.length
        if length is None and self.config.epochs == 1:
            raise ValueError(
                "the loader has no length, and one epoch ends before the schedules know it: give epoch_steps in the "
                "configuration, or a loader with __len__"
            )
        if phase.budget is not None:
            check_budget(phase, length)
        self.description = describe_training(
            phase.name, self.compressor, self.config, phase.plan, batches=length, world_size=ranks.world_size
        )
        content = find_checkpoint(phase, ranks, self.description)
        if content is None:
            start_training(phase, ranks, self.batches)
        else:
            assert phase.checkpoint is not None
            load_model(phase.checkpoint, self.model, content["model"])
        self.optimizers = make_optimizers(self.compressor, self.config, self.steps)
        self.control = None
        if phase.budget is not None:
            self.control = BudgetControl(self.compressor, phase.budget, self.steps)
        if content is None:
            self.position, self.losses = Position(length=length), LossHistory()
            self.epoch_rng = self.resumed_rng = self._rng_state()
        else:
            self.optimizers.load_state_dict(content["optimizers"])
            if self.control is not None:
                self.control.load_state_dict(content["budget"])
                self.optimizers.stop("gates", self.control.settled)
            self.position, self.losses = Position(**content["position"]), LossHistory(content["pending"])
            # The states at the start of the epoch, and where the checkpoint was written.
            self.epoch_rng, self.resumed_rng = content["random"][ranks.rank]
            randomness.restore(self.resumed_rng, self.device, self.batches.generators)
        self._prepare_run(content)

    def _prepare_run(self, content: dict[str, Any] | None) -> None:
        """Set up what is not part of the state: the files, the clocks, and the wrapped network."""
        self.model.train()
        self.frozen = False
        self.ranks.check_equal(self.compressor.attachment.bank.counter, "the counters of the gates' noise")
        self.step = TrainingStep(
            self.ranks.wrap(self.model), self.compressor, self.phase.loss_fn, self.optimizers, self.config,
            mu=self.phase.mu, control=self.control, teacher=self.phase.teacher,
        )  # fmt: skip
        self.seconds_before = self.position.seconds
        self.started = self.saved = time.monotonic()
        self.reported: Execution | None = None
        unfinished = content is None or self.position.epoch < self.config.epochs
        writes = self.phase.folder is not None and self.ranks.is_first and unfinished
        path = self.phase.folder / "metrics.jsonl" if writes and self.phase.folder is not None else None
        self.metrics = MetricsLog(path, self.phase.name, None if content is None else content["metrics"])
        self.gates = None if path is None else GateLog(self.compressor)
        if content is None:
            self._save()
            if path is not None and self.phase.checkpoint is not None:
                # A checkpoint that cannot be read back is found now, and not after hours of training.
                read_checkpoint(self.phase.checkpoint)
        elif unfinished:
            self.progress.say(f"{self.phase.name}: resuming after {self.position}")

    @property
    def steps(self) -> int:
        """The number of steps of the phase; the largest integer where the loader has no length."""
        return self.config.epochs * self.batches.length if self.batches.length is not None else sys.maxsize

    def train(self) -> None:
        """Run the remaining epochs."""
        self.progress.begin(self.position.epochs_done())
        if self.config.compile and self.position.epoch < self.config.epochs:
            self.progress.say(f"{self.phase.name}: compiling, once: the first steps wait for it")
        try:
            while self.position.epoch < self.config.epochs:
                self._epoch()
        finally:
            self.optimizers.zero_grad()
            self.step.reset()  # a recorded graph holds memory of the device, and gradients in it
        self.ranks.broadcast_state(self.model)  # every process had batch norm statistics of its own

    def _epoch(self) -> None:
        position = self.position
        iterator = self._begin_epoch()
        while (batch := self._next(iterator)) is not None:
            self._prepare_step()
            self.losses.add(self.step(*batch))
            position.batch, position.step = position.batch + 1, position.step + 1
            if self.step.execution != self.reported:
                self._report_execution()
            if position.step % self.config.log_steps == 0:
                self._log()
                if self.config.epochs < FEW_EPOCHS and position.step < self.steps:
                    self._log_gates(position.step // self.config.log_steps, self.steps // self.config.log_steps + 1)
            due = self.phase.folder is not None and time.monotonic() - self.saved >= self.config.checkpoint_seconds
            stop, save = self.ranks.max([self.signals.received, int(due)])
            if stop:
                self._stop(stop)
            if save:
                self._save()
        if position.batch == 0:
            raise LoaderError(f"the loader gave no batches in epoch {position.epoch}; {self.phase.how_to_resume}")
        self.step.settle()
        if self.step.execution != self.reported:
            self._report_execution()
        position.length = self.batches.length or position.batch
        position.epoch, position.batch = position.epoch + 1, 0
        last = position.epoch == self.config.epochs
        if last:
            self._log()
        if last or self.config.epochs >= FEW_EPOCHS:
            self._log_gates(position.epoch, self.config.epochs)
        if self.phase.evaluate is not None and (last or position.epoch % self.config.evaluate_epochs == 0):
            self._evaluate(self.phase.evaluate)
        if last:
            self._save()

    def _begin_epoch(self) -> Iterator[Batch]:
        """The remaining batches of the epoch, with all random generators in the state that they had there."""
        generators, position = self.batches.generators, self.position
        if position.batch == 0:
            self.epoch_rng = self._rng_state()
            return self._from_loader(lambda: self.batches.start(position.epoch))
        randomness.restore(self.epoch_rng, self.device, generators)
        iterator = self._from_loader(lambda: self.batches.start(position.epoch, position.batch))
        randomness.restore(self.resumed_rng, self.device, generators)
        return iterator

    def _next(self, iterator: Iterator[Batch]) -> Batch | None:
        """The next batch; None at the end of the epoch, which comes when the first process has no more batches."""
        batch, error = None, None
        try:
            batch = self._from_loader(lambda: next(iterator, None))
        except LoaderError as problem:
            error = problem
        exhausted = batch is None and error is None
        ended, failed, stop = self.ranks.max([int(exhausted), int(error is not None), self.signals.received])
        if failed:
            if stop:  # Ctrl-C also ends the workers of a loader
                self._stop(stop)
            self.ranks.raise_together(error)
        return None if ended else batch

    def _from_loader(self, read: Callable[[], Result]) -> Result:
        try:
            return read()
        except Exception as error:
            where = f"epoch {self.position.epoch}, batch {self.position.batch}"
            raise LoaderError(
                f"the loader raised {type(error).__name__} at {where}: {error}; {self.phase.how_to_resume}"
            ) from error

    def _prepare_step(self) -> None:
        """Set learning rates for the next step, and freeze batch norm statistics where it is time."""
        epochs = self.config.epochs
        part = self.position.epochs_done() / epochs
        if self.control is not None:
            self.control.set_progress(part, self.position.step)
            if part >= SETTLE and not self.control.settled:
                self._settle(self.control)
        self.optimizers.set_progress(part)
        if not self.frozen and self.position.epochs_done(1) / epochs > 1 - self.config.frozen_statistics:
            self.frozen = True
            for module in self.model.modules():
                if isinstance(module, BatchNorm):
                    module.eval()
            self.step.reset()

    def _settle(self, control: BudgetControl) -> None:
        """Project the gates onto the budget; from now on weights and ranges learn alone."""
        before = self.compressor.cost(table=control.budget.table)
        control.settle()
        self.optimizers.stop("gates", True)
        after = self.compressor.cost(table=control.budget.table)
        where = {"epoch": self.position.epoch, "step": self.position.step}
        costs = {name: (getattr(before, name), getattr(after, name)) for name in control.budget.limits}
        self.metrics.write("projection", where | {name: list(both) for name, both in costs.items()})
        self.progress.say(
            f"{self.phase.name}: bits and channels are final from here: {control.budget.describe(after)} within "
            f"{control.budget}; the gates said {control.budget.describe(before)}"
        )

    def _check_losses(self) -> None:
        wrong = self.losses.read(self.ranks)
        if wrong is not None:
            step = self.position.step - wrong[0]
            raise self._non_finite(f"the loss became {wrong[1]} in step {step} (epoch {self.position.epoch})")

    def _check_parameters(self) -> None:
        error = None
        for name, parameter in self.model.named_parameters():
            if error is None and parameter.requires_grad and not bool(torch.isfinite(local_part(parameter)).all()):
                error = self._non_finite(
                    f"{name} became NaN or infinite after {self.position}, though the loss is finite"
                )
        self.ranks.raise_together(error)

    def _non_finite(self, what: str) -> NonFiniteError:
        lrs = ", ".join(f"{name} {lr:.3g}" for name, lr in self.optimizers.lrs().items())
        penalty = f" or a smaller mu (now {self.phase.mu:g})" if self.phase.mu else ""
        return NonFiniteError(
            f"{what}; training stopped. Try lower learning rates (now {lrs}){penalty}; {self.phase.how_to_resume}"
        )

    def _report_execution(self) -> None:
        """Report how the training is executed, at its start and whenever that changes."""
        self.reported = self.step.execution
        assert self.reported is not None
        where = {"epoch": self.position.epoch, "step": self.position.step}
        self.metrics.write("execution", {**where, **self.reported.to_json()})
        self.progress.say(f"{self.phase.name}: {self.reported}")

    def _log(self) -> None:
        """Write a line with the mean losses of the steps since the last one."""
        self._check_losses()
        values = self.losses.pop_means()
        if not values:
            return
        if self.phase.mu or self.control is not None:
            values["expected_relative_bops"] = self.compressor.expected_relative_bops().item()
        if self.control is not None:
            values |= self.control.values()
        where = {"epoch": self.position.epoch, "step": self.position.step, "seconds": round(self._seconds(), 3)}
        self.metrics.write("train", {**where, **values, "lr": self.optimizers.lrs()})
        self.progress.update(self.position.epochs_done(), values)

    def _log_gates(self, number: int, total: int) -> None:
        """Write a line about the gates where one is due."""
        if self.gates is not None and self.gates.due(number, total):
            where = {"epoch": self.position.epoch, "step": self.position.step}
            self.metrics.write("gates", where | self.gates.line())

    def _evaluate(self, evaluate: Evaluate) -> None:
        """Evaluate in evaluation mode, and restore modes and random generators."""
        rng_state = self._rng_state()
        with evaluation_mode(self.model), torch.no_grad():
            results = {name: float(value) for name, value in evaluate(self.model).items()}
        randomness.restore(rng_state, self.device, self.batches.generators)
        self.metrics.write("evaluate", {"epoch": self.position.epoch, "step": self.position.step, **results})
        self.progress.update(self.position.epoch, results, now=True)

    def _save(self) -> None:
        """Write a checkpoint, if there is a folder and everything is finite."""
        path = self.phase.checkpoint
        if path is None:
            return
        self._check_losses()
        self._check_parameters()
        self.position.seconds = self._seconds()
        rng_states = self.ranks.gather((self.epoch_rng, self._rng_state()))
        model, optimizers = full_model_state(self.model), self.optimizers.state_dict(self.model)
        error = None
        if self.ranks.is_first:
            try:
                content = {
                    "description": self.description,
                    "versions": versions(),
                    "model": model,
                    "optimizers": optimizers,
                    "budget": None if self.control is None else self.control.state_dict(),
                    "position": vars(self.position),
                    "pending": self.losses.pending,
                    "random": rng_states,
                    "metrics": self.metrics.sync(),
                }
                write_checkpoint(path, content)
            except TrainingError as problem:
                error = problem
        self.ranks.raise_together(error)
        self.saved = time.monotonic()

    def _stop(self, number: int) -> None:
        self._save()
        saved, resume = "nothing was saved, as there is no folder; the network is as that step left it", ""
        if self.phase.checkpoint is not None:
            saved = f"its state is saved in {self.phase.checkpoint}"
            resume = ": the same call with resume=True continues from there"
        raise Interrupted(f"{self.phase.name} was interrupted after {self.position}; {saved}", number, resume)

    def _rng_state(self) -> randomness.State:
        return randomness.capture(self.device, self.batches.generators)

    def _seconds(self) -> float:
        return self.seconds_before + time.monotonic() - self.started
