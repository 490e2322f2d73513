"""The engine: epochs of steps, with everything around them that keeps work from being lost.

A `Run` is one phase, search or fine-tuning, from its first or its resumed step to its last. Between steps it writes
metrics and checkpoints, and reads whether it was asked to stop; the device is waited for only then. Everything that
decides what the next step computes is in a checkpoint: network, optimizers, gates, randomness, position in the data.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from bayesbits.compressor import Compressor
from bayesbits.plan import Plan
from bayesbits.training import randomness
from bayesbits.training.batches import Batch, Batches
from bayesbits.training.checkpoint import check_belongs, load_model, read_checkpoint, write_checkpoint
from bayesbits.training.config import FinetuneConfig, SearchConfig
from bayesbits.training.description import describe, versions
from bayesbits.training.distributed import Ranks
from bayesbits.training.errors import Interrupted, LoaderError, NonFiniteError, TrainingError
from bayesbits.training.feed import mix
from bayesbits.training.interrupts import Interrupts
from bayesbits.training.metrics import Metrics
from bayesbits.training.optimizers import make_optimizers
from bayesbits.training.progress import ProgressReport
from bayesbits.training.step import TrainingStep

Result = TypeVar("Result")
Evaluate = Callable[[nn.Module], dict[str, float]]

_LOSSES = ("loss", "task_loss", "penalty")


@dataclass
class Task:
    """What a phase of training is called with."""

    phase: str
    """"search" or "finetune"."""
    compressor: Compressor
    loader: Iterable[Any]
    loss_fn: Callable[[Any, Any], Tensor]
    config: SearchConfig | FinetuneConfig
    mu: float
    """The weight of the penalty in the loss."""
    plan: Plan | None
    """What was fixed before fine-tuning."""
    folder: Path | None
    resume: bool
    evaluate: Evaluate | None
    teacher: nn.Module | None
    progress: bool

    def __post_init__(self) -> None:
        """Raise where something is wrong, before any work."""
        wanted = SearchConfig if self.phase == "search" else FinetuneConfig
        if not isinstance(self.config, wanted):
            raise TypeError(
                f"{self.phase} takes a {wanted.__name__}, and the configuration is a {type(self.config).__name__}"
            )
        if self.resume and self.folder is None:
            raise ValueError("resume=True goes on from the checkpoint in a folder, and none was given")
        if (self.teacher is None) != (self.config.distillation == 0):
            raise ValueError(
                f"distillation is {self.config.distillation:g} and there is {'no' if self.teacher is None else 'a'} "
                "teacher: learning from a teacher needs both, learning without one neither"
            )


@dataclass
class Position:
    """How far a run is."""

    epoch: int = 0
    batch: int = 0
    """How many batches of the epoch are done."""
    step: int = 0
    """How many batches are done in all."""
    length: int | None = None
    """How many batches an epoch has: as the loader says, or as the last whole epoch had; None: not known yet."""
    seconds: float = 0.0
    """How long the run has taken, in all of its sittings."""


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
        Run(task, ranks, stack.enter_context(Interrupts()), progress).train()


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
        self.position = Position(length=self.batches.length)
        self.path = None if task.folder is None else task.folder / f"{task.phase}.checkpoint"
        self.description = describe(
            task.phase, self.compressor, self.config, task.plan, batches=self.batches.length, world=ranks.world
        )
        self.frozen = False
        self.epoch_random: randomness.State = {}  # at the epoch's start
        self.resumed_random: randomness.State = {}  # at the checkpoint that the run went on from
        self.pending: list[list[float]] = []  # losses that were read from the device and not yet logged
        self.unread: list[Tensor] = []
        self._check_schedule()
        self._start(self._found_checkpoint())

    def _check_schedule(self) -> None:
        if self.position.length is None and self.config.epochs == 1:
            raise ValueError(
                "the loader has no length, and with one epoch the schedules cannot learn it from the first: give "
                "epoch_steps in the configuration, or a loader with __len__"
            )

    def _found_checkpoint(self) -> dict[str, Any] | None:
        """What the first process finds to go on from, in all processes."""
        error, content = None, None
        if self.path is not None and self.ranks.first:
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                if self.path.exists():
                    if not self.task.resume:
                        raise TrainingError(
                            f"{self.path} is there from an earlier run: go on from it with resume=True, or choose "
                            "another folder"
                        )
                    content = read_checkpoint(self.path)
                    check_belongs(self.path, content["description"], self.description)
            except (TrainingError, OSError) as problem:
                error = problem
        self.ranks.fail_together(error)
        found: dict[str, Any] | None = self.ranks.from_first(content)
        return found

    def _start(self, content: dict[str, Any] | None) -> None:
        """Bring everything to where the first step, or the next one after a checkpoint, finds it."""
        config, path = self.config, self.path if self.ranks.first else None
        if content is None:
            self.ranks.share_state(self.model)
            randomness.seed_everything(mix(config.seed, self.ranks.rank))
            counter = self.compressor.attachment.bank.counter
            counter.copy_(torch.tensor([config.seed % 2**32, 0]))
            if isinstance(config, SearchConfig) and not self.compressor.attachment.calibrated:
                self._calibrate(config)
        else:
            assert self.path is not None
            load_model(self.path, self.model, content["model"])
        groups = self.compressor.parameter_groups()
        if not groups:
            raise ValueError("nothing learns: every parameter is frozen, and no quantizer has a range or a gate left")
        self.optimizers = make_optimizers(self.compressor, config)
        if content is not None:
            self.optimizers.load_state_dict(content["optimizers"])
            self.position = Position(**content["position"])
            self.pending = content["pending"]
            self.epoch_random, self.resumed_random = content["random"][self.ranks.rank]
            if self.position.batch == 0:
                randomness.restore(self.resumed_random, self.device, self.batches.generators)
        else:
            self.epoch_random = self._random()
        finished = self.position.epoch >= config.epochs
        self.metrics = Metrics(
            None if path is None or (finished and content is not None) else path.with_name("metrics.jsonl"),
            self.task.phase,
            None if content is None else content["metrics"],
        )
        self.model.train()
        network = self.ranks.parallel(self.model)
        self.ranks.check_equal(self.compressor.attachment.bank.counter, "the counters of the gates' noise")
        self.step = TrainingStep(
            network, self.compressor, self.task.loss_fn, self.optimizers, config,
            mu=self.task.mu, teacher=self.task.teacher,
        )  # fmt: skip
        self.started = self.saved = time.monotonic()
        self.seconds_before = self.position.seconds
        if content is None:
            self._save()
            if path is not None:
                # Now and not after hours of work: can what was written be read back?
                read_checkpoint(path)
        elif self.position.epoch or self.position.batch:
            self.progress.say(f"{self.task.phase}: going on from {self._where()}")

    def _calibrate(self, config: SearchConfig) -> None:
        """Ranges from the first batches, in several processes from those of all: one process would see them whole."""

        def inputs() -> Iterator[Any]:
            batches = self.batches.start(0)
            for _ in range(config.calibration_batches):
                parts = self.ranks.gather(next(batches, (None, None))[0])
                if any(part is None for part in parts):
                    return
                yield _joined(parts, self.device)

        self.compressor.calibrate(inputs(), method=config.calibration)

    def train(self) -> None:
        """Run the epochs that are left."""
        self.progress.begin(self._part(self.position.batch) * self.config.epochs)
        while self.position.epoch < self.config.epochs:
            self._epoch()
        self.ranks.share_state(self.model)  # batch norm's statistics are each process's own

    def _epoch(self) -> None:
        position = self.position
        iterator = self._begin_epoch()
        while (batch := self._next(iterator)) is not None:
            self._prepare()
            self.unread.append(self.step(*batch).clone())
            position.batch += 1
            position.step += 1
            if position.step % self.config.log_steps == 0:
                self._log()
            due = self.path is not None and time.monotonic() - self.saved >= self.config.checkpoint_seconds
            stop, save = self.ranks.most([self.interrupts.asked, int(due)])
            if stop:
                self._stop(stop)
            if save:
                self._save()
        if position.batch == 0:
            raise LoaderError(f"the loader gave no batches in epoch {position.epoch}")
        position.length = self.batches.length or position.batch
        position.epoch, position.batch = position.epoch + 1, 0
        last = position.epoch == self.config.epochs
        if last:
            self._log()
        if self.task.evaluate is not None and (last or position.epoch % self.config.evaluate_epochs == 0):
            self._evaluate(self.task.evaluate)
        self.epoch_random = self._random()
        if last:
            self._save()

    def _begin_epoch(self) -> Iterator[Batch]:
        """The rest of an epoch's batches, with all randomness where it was."""
        generators, position = self.batches.generators, self.position
        if position.batch == 0:
            self.epoch_random = self._random()
            return self._guarded(lambda: self.batches.start(position.epoch))
        randomness.restore(self.epoch_random, self.device, generators)
        iterator = self._guarded(lambda: self.batches.start(position.epoch, position.batch))
        randomness.restore(self.resumed_random, self.device, generators)
        return iterator

    def _next(self, iterator: Iterator[Batch]) -> Batch | None:
        """The next batch; None at the end of the epoch, which is where the first process comes to its end."""
        batch, error = None, None
        try:
            batch = self._guarded(lambda: next(iterator, None))
        except LoaderError as problem:
            error = problem
        ended, failed, stop = self.ranks.most(
            [int(batch is None and error is None), int(error is not None), self.interrupts.asked]
        )
        if failed:
            if stop:  # Ctrl-C reaches the workers of a loader too, and ends them
                self._stop(stop)
            self.ranks.fail_together(error)
        return None if ended else batch

    def _guarded(self, act: Callable[[], Result]) -> Result:
        try:
            return act()
        except Exception as error:
            where = f"epoch {self.position.epoch}, batch {self.position.batch}"
            raise LoaderError(
                f"the loader raised {type(error).__name__} at {where}: {error}; {self._way_on()}"
            ) from error

    def _prepare(self) -> None:
        """Rates, and whether batch norms keep their statistics, for the coming step."""
        part, following = (self._part(self.position.batch + ahead) for ahead in (0, 1))
        self.optimizers.set_progress(part)
        if not self.frozen and following > 1 - self.config.frozen_statistics:
            self.frozen = True
            for module in self.model.modules():
                if isinstance(module, _BatchNorm):
                    module.eval()
            self.step.reset()

    def _part(self, batch: int) -> float:
        """Which part of the training is done when so many batches of this epoch are.

        A loader without a length is taken to be at its epoch's start until a whole epoch has been seen.
        """
        length = self.position.length
        within = 0.0 if length is None else min(1.0, batch / length)
        return (self.position.epoch + within) / self.config.epochs

    def _read(self) -> None:
        """Read the losses of the steps since the last time; an error where one is not finite."""
        if self.unread:
            rows = self.ranks.mean(torch.stack(self.unread).cpu())
            first = self.position.step - len(self.unread)
            self.unread = []
            for offset, row in enumerate(rows):
                if not bool(torch.isfinite(row).all()):
                    raise self._non_finite(
                        f"the loss became {row[0].item()} in step {first + offset} (epoch {self.position.epoch})"
                    )
            self.pending += rows.tolist()

    def _check_parameters(self) -> None:
        for name, parameter in self.model.named_parameters():
            if parameter.requires_grad and not bool(torch.isfinite(parameter).all()):
                raise self._non_finite(f"{name} is not finite any more at {self._where()}, though the loss still was")

    def _non_finite(self, what: str) -> NonFiniteError:
        rates = ", ".join(f"{name} {rate:.3g}" for name, rate in self.optimizers.rates().items())
        return NonFiniteError(
            f"{what}; training stopped. Try lower learning rates (now {rates})"
            + (f" or a smaller mu (now {self.task.mu:g})" if self.task.mu else "")
            + f"; {self._way_on()}"
        )

    def _log(self) -> None:
        """Write what the steps since the last line came to."""
        self._read()
        if not self.pending:
            return
        columns = zip(*self.pending, strict=True)
        values = {name: sum(column) / len(self.pending) for name, column in zip(_LOSSES, columns, strict=True)}
        self.pending = []
        if self.task.mu:
            values["expected_relative_bops"] = self.compressor.expected_relative_bops().item()
        where = {"epoch": self.position.epoch, "step": self.position.step, "seconds": round(self._seconds(), 3)}
        self.metrics.write("train", {**where, **values, "rates": self.optimizers.rates()})
        self.progress.update(self._part(self.position.batch) * self.config.epochs, values)

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
        if self.path is None:
            return
        self._read()
        self._check_parameters()
        self.position.seconds = self._seconds()
        random = self.ranks.gather((self.epoch_random, self._random()))
        error = None
        if self.ranks.first:
            try:
                write_checkpoint(self.path, {
                    "description": self.description,
                    "versions": versions(),
                    "model": self.model.state_dict(),
                    "optimizers": self.optimizers.state_dict(),
                    "position": vars(self.position),
                    "pending": self.pending,
                    "random": random,
                    "metrics": self.metrics.sync(),
                })  # fmt: skip
            except TrainingError as problem:
                error = problem
        self.ranks.fail_together(error)
        self.saved = time.monotonic()

    def _stop(self, number: int) -> None:
        self._save()
        end = "nothing was saved, as there is no folder; the network is as that step left it"
        if self.path is not None:
            end = f"all of it is in {self.path}: the same call with resume=True goes on from there"
        raise Interrupted(f"{self.task.phase} was interrupted after {self._where()}; {end}", number)

    def _where(self) -> str:
        position = self.position
        return f"{position.step} steps (epoch {position.epoch} of {self.config.epochs}, batch {position.batch})"

    def _way_on(self) -> str:
        if self.path is None:
            return "there is no folder with a checkpoint to go on from"
        return f"the last good checkpoint is intact, and resume=True goes on from it: {self.path}"

    def _random(self) -> randomness.State:
        return randomness.capture(self.device, self.batches.generators)

    def _seconds(self) -> float:
        return self.seconds_before + time.monotonic() - self.started


def _joined(parts: list[Any], device: torch.device) -> Any:
    """The inputs of all processes as one batch."""
    first = parts[0]
    if isinstance(first, Tensor):
        return torch.cat([part.to(device) for part in parts]) if first.dim() and len(parts) > 1 else first
    if isinstance(first, dict):
        return {key: _joined([part[key] for part in parts], device) for key in first}
    if isinstance(first, tuple):
        return tuple(_joined(list(entries), device) for entries in zip(*parts, strict=True))
    return first
