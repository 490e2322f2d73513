"""Running a recipe: data, network, float weights, search, plan, fine-tuning, the test, and a folder with all of it.

Every stage goes on from its own checkpoint, so that a run can be stopped anywhere. The test set is looked at for the
float network that the search starts from and for the final network, and decides nothing.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from bayesbits.compression.attach import attach
from bayesbits.compression.compressor import Compressor
from bayesbits.compression.spec import Spec
from bayesbits.recipes import advice
from bayesbits.recipes import folder as files
from bayesbits.recipes.accuracy import measure
from bayesbits.recipes.finished import describe
from bayesbits.recipes.loaders import Loaders, open_data
from bayesbits.recipes.machine import Machine, find_machine, fitting
from bayesbits.recipes.networks import build
from bayesbits.recipes.recipe import FloatConfig, Recipe
from bayesbits.recipes.result import POSTTRAINING, Result
from bayesbits.recipes.tasks import LearningTask, learning_task
from bayesbits.recipes.trial import check_fits
from bayesbits.records.plan import Plan
from bayesbits.training import finetune, search
from bayesbits.training.batches import Batches
from bayesbits.training.engine import run as train
from bayesbits.training.randomness import seed_everything
from bayesbits.training.task import Task
from bayesbits.zoo.models import load_checkpoint

Say = Callable[[str], None]


def run(
    recipe: Recipe,
    folder: str | Path,
    *,
    resume: bool = False,
    device: str | None = None,
    progress: bool = True,
    say: Say = print,
) -> Result:
    """Run a recipe from its data to its result; `resume` goes on with what lies in the folder, if anything does."""
    folder, machine = Path(folder), find_machine(device)
    say = say if machine.first else _say_nothing
    if recipe.model.pretrained and recipe.model.checkpoint is None and recipe.float_training is None:
        raise ValueError(
            f"the recipe {recipe.name} starts from trained weights: say where they are by model.checkpoint (on the "
            "command line: --set model.checkpoint=FILE), or give a [float] table to train them"
        )
    loaders = open_data(recipe.data, machine, recipe.seed)
    if machine.first:
        files.check(folder, recipe, resume=resume)
    finished = _finished(folder, say)
    if finished is not None:
        return finished
    stages = _Stages(recipe, folder, machine, loaders, progress, say)
    model = stages.new_model()
    check_fits(stages.task, model, loaders)
    if machine.first:  # only now, so that what could not even start leaves nothing in the way of the next try
        files.prepare(folder, recipe)
    float_values = stages.float_network(model)
    compressor, plan = stages.search(model)
    stages.finish(compressor, plan)
    return stages.result(compressor, plan, float_values)


def _finished(folder: Path, say: Say) -> Result | None:
    """The result that is there already; one that is damaged is made again from the checkpoints."""
    path = folder / files.RESULT
    if not path.exists():
        return None
    try:
        result = Result.load(path)
    except ValueError:
        if (folder / files.POSTTRAIN).exists():
            raise
        say(f"{path} is damaged: the run goes on from its checkpoints, and writes it again")
        return None
    if result.method == POSTTRAINING:
        raise ValueError(f"{folder} holds a result of bayesbits posttrain; choose another folder by --out")
    return result


@dataclass(frozen=True)
class TrainedNetwork:
    """Where post-training starts."""

    model: nn.Module
    """The float network with its trained weights, in evaluation, on the device."""
    loaders: Loaders
    task: LearningTask
    """What it is judged by."""
    values: Mapping[str, float]
    """The task's metrics on the test set, by their keys."""
    tested: int
    """How many examples the test set has."""
    machine: Machine
    """What it is on."""


def trained_network(
    recipe: Recipe, folder: str | Path, *, labeled: bool = True, device: str | None = None, say: Say = print
) -> TrainedNetwork:
    """The float network of a recipe: from its checkpoint, or trained as the recipe says; then the folder keeps it.

    Not `labeled`: the training loader may give inputs alone, unless the network is still to be trained.
    """
    folder, machine = Path(folder), find_machine(device)
    labeled = labeled or (recipe.float_training is not None and not (folder / files.FLOAT).exists())
    loaders = open_data(recipe.data, machine, recipe.seed, labeled=labeled)
    files.check(folder, recipe, resume=True)
    stages = _Stages(recipe, folder, machine, loaders, progress=True, say=say)
    if recipe.model.checkpoint is None and recipe.float_training is None:
        raise ValueError(
            f"the recipe {recipe.name} has no trained weights to start from: say where they are by model.checkpoint "
            "(on the command line: --checkpoint FILE), or give a [float] table to train them"
        )
    model = stages.new_model()
    check_fits(stages.task, model, loaders, labeled=labeled)
    if recipe.float_training is not None:  # which writes to the folder
        files.prepare(folder, recipe)
    values = stages.float_network(model)
    files.prepare(folder, recipe)
    assert values is not None
    # Opened again: the first examples are then the same, whether the network was trained just now or long ago.
    loaders = open_data(recipe.data, machine, recipe.seed, labeled=labeled)
    return TrainedNetwork(model.eval(), loaders, stages.task, values, stages.tested, machine)


class _Stages:
    """The stages of one run, in their order."""

    def __init__(
        self, recipe: Recipe, folder: Path, machine: Machine, loaders: Loaders, progress: bool, say: Say
    ) -> None:
        self.recipe, self.folder, self.machine, self.loaders = recipe, folder, machine, loaders
        self.progress, self.say = progress, say
        self.task = learning_task(recipe.task)
        self.advice = ""
        self.teacher: nn.Module | None = None
        self.tested = 0

    def new_model(self) -> nn.Module:
        """The network with the weights of the checkpoint, or with those that the seed gives it."""
        seed_everything(self.recipe.seed)
        config = self.recipe.model
        model = build(config.name, config.options, self.loaders.classes)[0]
        if config.checkpoint is not None:
            load_checkpoint(model, config.checkpoint)
        return model.to(self.machine.device)

    def float_network(self, model: nn.Module) -> dict[str, float] | None:
        """Train the float network if the recipe says so; its metrics, or None where the search starts from scratch."""
        recipe = self.recipe
        if recipe.float_training is not None:
            self._train_float(model, fitting(recipe.float_training, self.machine.device, self.say, "float"))
        elif recipe.model.checkpoint is None:
            self.say("the search starts from scratch")
            return None
        if any(config is not None and config.distillation for config in (recipe.search, recipe.finetune)):
            self.teacher = copy.deepcopy(model)
        values, self.tested = measure(model, self.loaders.test, self.task.metrics)
        words = ", ".join(f"{one.name} {one.text(values[one.key])}" for one in self.task.metrics)
        self.say(f"float network: {words} on the test set")
        return values

    def _train_float(self, model: nn.Module, config: FloatConfig) -> None:
        """Ordinary training, by the same engine: attached with every tensor left in float."""
        saved = self.folder / files.FLOAT
        if not saved.exists():
            nothing = Spec(prune=False, input_bits=32, residual_bits=None, rules={"*": {"bits": 32}})  # type: ignore[dict-item]
            compressor = attach(model, self.loaders.example, nothing)
            compressor.calibrate([self.loaders.example])  # of which nothing is used
            task = Task(
                "float", compressor, self.loaders.train, self.task.loss.function, config, plan=None,
                folder=self.folder, resume=True, evaluate=self._evaluate, teacher=None, progress=self.progress,
            )  # fmt: skip
            train(task)
            compressor.detach()
            if self.machine.first:
                files.save_weights(model, saved)
        else:
            files.load_weights(model, saved)

    def search(self, model: nn.Module) -> tuple[Compressor, Plan]:
        """Learn bits and channels."""
        recipe = self.recipe
        config = fitting(recipe.search, self.machine.device, self.say, "search")
        compressor = attach(model, self.loaders.example, recipe.spec)
        if self.machine.first:
            compressor.topology.save(self.folder / files.TOPOLOGY)
        steps = self._search_steps()
        learns = any(group["name"] == "gates" for group in compressor.parameter_groups())
        open_bops = compressor.cost(compressor.plan()).relative_bops
        if learns and (warning := advice.before(config, steps)):
            self.say(warning)
        plan = search(
            compressor, self.loaders.train, self.task.loss.function, config, folder=self.folder, resume=True,
            evaluate=self._evaluate, teacher=self.teacher if config.distillation else None, progress=self.progress,
        )  # fmt: skip
        relative_bops = compressor.cost(plan).relative_bops
        self.say(f"search: {relative_bops:.3g}% of the bit operations")
        self.advice = advice.after(relative_bops, open_bops, config, steps) if learns else ""
        return compressor, plan

    def _search_steps(self) -> int | None:
        """How many steps the search has in all; None where the loader does not say."""
        config = self.recipe.search
        batches = Batches(self.loaders.train, self.machine.device, config.epoch_steps).length
        return None if batches is None else batches * config.epochs

    def finish(self, compressor: Compressor, plan: Plan) -> None:
        """Make bits and channels final, and fine-tune what is left."""
        if self.recipe.finetune is None:
            compressor.fix(plan)
        else:
            config = fitting(self.recipe.finetune, self.machine.device, self.say, "finetune")
            finetune(
                compressor, self.loaders.train, self.task.loss.function, config, plan=plan, folder=self.folder,
                resume=True, evaluate=self._evaluate, teacher=self.teacher if config.distillation else None,
                progress=self.progress,
            )  # fmt: skip

    def result(self, compressor: Compressor, plan: Plan, float_values: Mapping[str, float] | None) -> Result:
        """Test the final network, and write what it came to."""
        values, _ = measure(compressor.model, self.loaders.test, self.task.metrics)
        result = describe(
            self.recipe, self.folder, compressor, plan, self.machine,
            scores=self.task.scores(values, float_values), advice=self.advice,
        )  # fmt: skip
        if self.machine.first:
            files.save_weights(compressor.model, self.folder / files.MODEL)
            result.save(self.folder / files.RESULT)
        return result

    @property
    def _evaluate(self) -> Callable[[nn.Module], dict[str, float]] | None:
        """What is looked at after every epoch: images held back from training, never those of the test."""
        validation, metrics = self.loaders.validation, self.task.metrics
        if validation is None:
            return None
        return lambda model: {
            f"validation_{key}": value for key, value in measure(model, validation, metrics)[0].items()
        }


def _say_nothing(_text: str) -> None:
    pass
