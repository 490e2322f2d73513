"""The engine: epochs of steps, with everything around them that keeps work from being lost.

A `Run` is one phase, search or fine-tuning, from its first or its resumed step to its last. Between steps it writes
metrics and checkpoints, and reads whether it was asked to stop; the device is waited for only then. Everything that
decides what the next step computes is in a checkpoint: network, optimizers, gates, randomness, position in the data.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

import torch
from torch import nn

from bayesbits.functional import compiled
from bayesbits.training import randomness
from bayesbits.training.batches import Batch, Batches
from bayesbits.training.checkpoint import load_model, read_checkpoint, write_checkpoint
from bayesbits.training.description import describe, versions
from bayesbits.training.distributed import Ranks
from bayesbits.training.errors import Interrupted, LoaderError, NonFiniteError, TrainingError
from bayesbits.training.execution import Execution
from bayesbits.training.interrupts import Interrupts
from bayesbits.training.loss_history import Losses
from bayesbits.training.metrics_log import Metrics
from bayesbits.training.optimizers import make_optimizers
from bayesbits.training.progress import ProgressReport
from bayesbits.training.sharding import averaging_what_is_whole, deal_out_optimizers, local, whole
from bayesbits.training.start import find_checkpoint, start_anew
from bayesbits.training.step import TrainingStep
from bayesbits.training.task import Evaluate, Position, Task
from bayesbits.utils.torch_private import BatchNorm

Result = TypeVar("Result")


def run(task: Task) -> None:
    """Train to the end; see `Run`."""
    model = task.compressor.model
    with ExitStack() as stack:
        stack.enter_context(modes_restored(model))
        if task.teacher is not None:
            stack.enter_context(modes_restored(task.teacher))
            task.teacher.eval()
        ranks = stack.enter_context(Ranks(next(model.parameters()).device))
        shown = task.progress and ranks.first
        progress = stack.enter_context(ProgressReport(task.phase, task.config.epochs, show=shown))
        stack.enter_context(averaging_what_is_whole(task.compressor))
        phase = Run(task, ranks, stack.enter_context(Interrupts()), progress)
        # Weights and activations are of different combinations: half of the quantizers share one.
        quantizers = len(task.compressor.attachment.quantizers)
        stack.enter_context(compiled.expecting(phase.steps * quantizers // 2))
        phase.train()


@contextmanager
def modes_restored(model: nn.Module) -> Iterator[None]:
    """Afterwards every module is in training or evaluation as it was before."""
    flags = [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        for module, training in flags:
            module.training = training


class Run:
    """One phase of training, from where it starts to its end."""

    def __init__(self, task: Task, ranks: Ranks, interrupts: Interrupts, progress: ProgressReport) -> None:
        self.task, self.config, self.ranks = task, task.config, ranks
        self.interrupts, self.progress = interrupts, progress
        self.compressor, self.model = task.compressor, task.compressor.model
        self.device = next(self.model.parameters()).device
        self.batches = Batches(task.loader, self.device, task.config.epoch_steps)
        length = self.batches.length
        if length is None and self.config.epochs == 1:
            raise ValueError(
                "the loader has no length, and with one epoch the schedules cannot learn it from the first: give "
                "epoch_steps in the configuration, or a loader with __len__"
            )
        self.description = describe(
            task.phase, self.compressor, self.config, task.plan, batches=length, world=ranks.world
        )
        content = find_checkpoint(task, ranks, self.description)
        if content is None:
            start_anew(task, ranks, self.batches)
        else:
            assert task.checkpoint is not None
            load_model(task.checkpoint, self.model, content["model"])
        self.optimizers = make_optimizers(self.compressor, self.config)
        if content is None:
            self.position, self.losses = Position(length=length), Losses()
            self.epoch_random = self.resumed_random = self._random()
        else:
            self.optimizers.load_state_dict(deal_out_optimizers(content["optimizers"], self.compressor))
            self.position, self.losses = Position(**content["position"]), Losses(content["pending"])
            # At the start of the epoch, and where the checkpoint was written.
            self.epoch_random, self.resumed_random = content["random"][ranks.rank]
            randomness.restore(self.resumed_random, self.device, self.batches.generators)
        self._get_ready(content)

    def _get_ready(self, content: dict[str, Any] | None) -> None:
        """What is not part of the state: the files, the clocks, and the network that runs."""
        self.model.train()
        self.frozen = False
        self.ranks.check_equal(self.compressor.attachment.bank.counter, "the counters of the gates' noise")
        self.step = TrainingStep(
            self.ranks.parallel(self.model), self.compressor, self.task.loss_fn, self.optimizers, self.config,
            mu=self.task.mu, teacher=self.task.teacher,
        )  # fmt: skip
        self.seconds_before = self.position.seconds
        self.started = self.saved = time.monotonic()
        self.told: Execution | None = None
        going_on = content is None or self.position.epoch < self.config.epochs
        writes = self.task.folder is not None and self.ranks.first and going_on
        path = self.task.folder / "metrics.jsonl" if writes and self.task.folder is not None else None
        self.metrics = Metrics(path, self.task.phase, None if content is None else content["metrics"])
        if content is None:
            self._save()
            if path is not None and self.task.checkpoint is not None:
                # Now and not after hours of work: can what was written be read back?
                read_checkpoint(self.task.checkpoint)
        elif going_on:
            self.progress.say(f"{self.task.phase}: going on after {self.position}")

    @property
    def steps(self) -> int:
        """How many there are from the start to the end; where the loader has no length, more than can be counted."""
        return self.config.epochs * self.batches.length if self.batches.length is not None else sys.maxsize

    def train(self) -> None:
        """Run the epochs that are left."""
        self.progress.begin(self.position.epochs_done())
        try:
            while self.position.epoch < self.config.epochs:
                self._epoch()
        finally:
            self.optimizers.zero_grad()
            self.step.reset()  # a record holds memory of the device, and gradients lie in it
        self.ranks.share_state(self.model)  # batch norm's statistics were each process's own

    def _epoch(self) -> None:
        position = self.position
        iterator = self._begin_epoch()
        while (batch := self._next(iterator)) is not None:
            self._prepare()
            self.losses.add(self.step(*batch))
            position.batch, position.step = position.batch + 1, position.step + 1
            if self.step.execution != self.told:
                self._tell_execution()
            if position.step % self.config.log_steps == 0:
                self._log()
            due = self.task.folder is not None and time.monotonic() - self.saved >= self.config.checkpoint_seconds
            stop, save = self.ranks.most([self.interrupts.asked, int(due)])
            if stop:
                self._stop(stop)
            if save:
                self._save()
        if position.batch == 0:
            raise LoaderError(f"the loader gave no batches in epoch {position.epoch}; {self.task.way_on}")
        self.step.settle()
        if self.step.execution != self.told:
            self._tell_execution()
        position.length = self.batches.length or position.batch
        position.epoch, position.batch = position.epoch + 1, 0
        last = position.epoch == self.config.epochs
        if last:
            self._log()
        if self.task.evaluate is not None and (last or position.epoch % self.config.evaluate_epochs == 0):
            self._evaluate(self.task.evaluate)
        if last:
            self._save()

    def _begin_epoch(self) -> Iterator[Batch]:
        """The batches of the epoch that are left, with all randomness where it was."""
        generators, position = self.batches.generators, self.position
        if position.batch == 0:
            self.epoch_random = self._random()
            return self._from_loader(lambda: self.batches.start(position.epoch))
        randomness.restore(self.epoch_random, self.device, generators)
        iterator = self._from_loader(lambda: self.batches.start(position.epoch, position.batch))
        randomness.restore(self.resumed_random, self.device, generators)
        return iterator

    def _next(self, iterator: Iterator[Batch]) -> Batch | None:
        """The next batch; None at the end of the epoch, which is where any process comes to its end."""
        batch, error = None, None
        try:
            batch = self._from_loader(lambda: next(iterator, None))
        except LoaderError as problem:
            error = problem
        over = batch is None and error is None
        ended, failed, stop = self.ranks.most([int(over), int(error is not None), self.interrupts.asked])
        if failed:
            if stop:  # Ctrl-C reaches the workers of a loader too, and ends them
                self._stop(stop)
            self.ranks.fail_together(error)
        return None if ended else batch

    def _from_loader(self, act: Callable[[], Result]) -> Result:
        try:
            return act()
        except Exception as error:
            where = f"epoch {self.position.epoch}, batch {self.position.batch}"
            raise LoaderError(
                f"the loader raised {type(error).__name__} at {where}: {error}; {self.task.way_on}"
            ) from error

    def _prepare(self) -> None:
        """Rates, and whether batch norms keep their statistics, for the coming step."""
        epochs = self.config.epochs
        self.optimizers.set_progress(self.position.epochs_done() / epochs)
        if not self.frozen and self.position.epochs_done(1) / epochs > 1 - self.config.frozen_statistics:
            self.frozen = True
            for module in self.model.modules():
                if isinstance(module, BatchNorm):
                    module.eval()
            self.step.reset()

    def _check_losses(self) -> None:
        wrong = self.losses.read(self.ranks)
        if wrong is not None:
            step = self.position.step - wrong[0]
            raise self._non_finite(f"the loss became {wrong[1]} in step {step} (epoch {self.position.epoch})")

    def _check_parameters(self) -> None:
        error = None
        for name, parameter in self.model.named_parameters():
            if error is None and parameter.requires_grad and not bool(torch.isfinite(local(parameter)).all()):
                error = self._non_finite(f"{name} is not finite any more after {self.position}, though the loss was")
        self.ranks.fail_together(error)

    def _non_finite(self, what: str) -> NonFiniteError:
        rates = ", ".join(f"{name} {rate:.3g}" for name, rate in self.optimizers.rates().items())
        price = f" or a smaller mu (now {self.task.mu:g})" if self.task.mu else ""
        return NonFiniteError(
            f"{what}; training stopped. Try lower learning rates (now {rates}){price}; {self.task.way_on}"
        )

    def _tell_execution(self) -> None:
        """Say which way the training runs, at its start and whenever that changes."""
        self.told = self.step.execution
        assert self.told is not None
        where = {"epoch": self.position.epoch, "step": self.position.step}
        self.metrics.write("execution", {**where, **self.told.to_json()})
        self.progress.say(f"{self.task.phase}: {self.told}")

    def _log(self) -> None:
        """Write what the steps since the last line came to."""
        self._check_losses()
        values = self.losses.take_means()
        if not values:
            return
        if self.task.mu:
            values["expected_relative_bops"] = self.compressor.expected_relative_bops().item()
        where = {"epoch": self.position.epoch, "step": self.position.step, "seconds": round(self._seconds(), 3)}
        self.metrics.write("train", {**where, **values, "lr": self.optimizers.rates()})
        self.progress.update(self.position.epochs_done(), values)

    def _evaluate(self, evaluate: Evaluate) -> None:
        """Evaluate in evaluation mode; training goes on as if it had not been, randomness included."""
        random = self._random()
        with modes_restored(self.model), torch.no_grad():
            self.model.eval()
            results = {name: float(value) for name, value in evaluate(self.model).items()}
        randomness.restore(random, self.device, self.batches.generators)
        self.metrics.write("evaluate", {"epoch": self.position.epoch, "step": self.position.step, **results})
        self.progress.update(self.position.epoch, results, now=True)

    def _save(self) -> None:
        """Write a checkpoint, if there is a folder and all is well."""
        path = self.task.checkpoint
        if path is None:
            return
        self._check_losses()
        self._check_parameters()
        self.position.seconds = self._seconds()
        random = self.ranks.gather((self.epoch_random, self._random()))
        model, optimizers = whole(self.model.state_dict()), whole(self.optimizers.state_dict())
        error = None
        if self.ranks.first:
            try:
                content = {
                    "description": self.description,
                    "versions": versions(),
                    "model": model,
                    "optimizers": optimizers,
                    "position": vars(self.position),
                    "pending": self.losses.pending,
                    "random": random,
                    "metrics": self.metrics.sync(),
                }
                write_checkpoint(path, content)
            except TrainingError as problem:
                error = problem
        self.ranks.fail_together(error)
        self.saved = time.monotonic()

    def _stop(self, number: int) -> None:
        self._save()
        end, way_on = "nothing was saved, as there is no folder; the network is as that step left it", ""
        if self.task.checkpoint is not None:
            end = f"all of it is in {self.task.checkpoint}"
            way_on = ": the same call with resume=True goes on from there"
        raise Interrupted(f"{self.task.phase} was interrupted after {self.position}; {end}", number, way_on)

    def _random(self) -> randomness.State:
        return randomness.capture(self.device, self.batches.generators)

    def _seconds(self) -> float:
        return self.seconds_before + time.monotonic() - self.started
