"""The stages of a run in their order: new network, float training, search, fine-tuning, and the test of the result.

Every stage writes its files to the folder of the run and resumes from its own checkpoint.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from torch import nn

from bayesbits.compression.attach import attach
from bayesbits.compression.budget import Budget
from bayesbits.compression.compressor import Compressor, check_gated
from bayesbits.compression.smallest_plan import check_reachable
from bayesbits.compression.spec import Spec
from bayesbits.recipes import run_folder, search_advice
from bayesbits.recipes.data import Loaders
from bayesbits.recipes.evaluation import Measurement, measure, measure_by_class
from bayesbits.recipes.factories import build_model
from bayesbits.recipes.process import Process, config_for_device
from bayesbits.recipes.recipe import FloatConfig, Recipe
from bayesbits.recipes.result import Result, result_of_run
from bayesbits.recipes.statistics import write_statistics
from bayesbits.recipes.tasks import learning_task
from bayesbits.recipes.verdict import limits_nothing
from bayesbits.records.plan import Plan
from bayesbits.training import finetune, search
from bayesbits.training.batches import Batches
from bayesbits.training.engine import run as train
from bayesbits.training.phase import Phase
from bayesbits.training.randomness import seed_everything
from bayesbits.zoo.models import load_checkpoint

Say = Callable[[str], None]


class Stages:
    """The stages of one run."""

    def __init__(
        self, recipe: Recipe, folder: Path, process: Process, loaders: Loaders, progress: bool, say: Say
    ) -> None:
        self.recipe, self.folder, self.process, self.loaders = recipe, folder, process, loaders
        self.progress, self.say = progress, say
        self.task = learning_task(recipe.task)
        self.advice = ""
        self.teacher: nn.Module | None = None
        self.tested = 0
        self.float_classes: tuple[float | None, ...] = ()
        self.search_accuracy: float | None = None

    def new_model(self) -> nn.Module:
        """The network with the weights of the checkpoint, or with random weights that depend on the seed alone."""
        seed_everything(self.recipe.seed)
        config = self.recipe.model
        model = build_model(config.name, config.options, self.loaders.classes)[0]
        if config.checkpoint is not None:
            load_checkpoint(model, config.checkpoint)
        return model.to(self.process.device)

    def check_budget(self, model: nn.Module, budget: Budget | None) -> None:
        """Raise a `BudgetError` before any training where the network cannot be made as small as the budget asks."""
        if budget is not None:
            compressor = attach(copy.deepcopy(model), self.loaders.example, self.recipe.spec)
            check_gated(compressor, "a budget")
            check_reachable(compressor.attachment, budget)
            if needless := limits_nothing(compressor, budget):
                self.say(f"budget of {budget}: {needless}")

    def float_network(self, model: nn.Module) -> dict[str, float] | None:
        """Train the float network if the recipe says so; returns its metrics, or None for a search from scratch."""
        recipe = self.recipe
        if recipe.float_training is not None:
            self._train_float(model, config_for_device(recipe.float_training, self.process.device, self.say, "float"))
        elif recipe.model.checkpoint is None:
            self.say("the search starts from scratch")
            return None
        if any(config is not None and config.distillation for config in (recipe.search, recipe.finetune)):
            self.teacher = copy.deepcopy(model)
        found = self._test(model, "float network")
        self.tested, self.float_classes = found.examples, found.class_accuracies
        return found.values

    def _test(self, model: nn.Module, name: str) -> Measurement:
        """The metrics on the test set, which are told and decide nothing."""
        found = measure_by_class(model, self.loaders.test, self.task.metrics)
        words = ", ".join(f"{one.name} {one.text(found.values[one.key])}" for one in self.task.metrics)
        self.say(f"{name}: {words} on the test set")
        return found

    def _train_float(self, model: nn.Module, config: FloatConfig) -> None:
        """Ordinary training with the engine of the search: quantizers are attached, and every tensor stays in float."""
        saved = self.folder / run_folder.FLOAT
        if not saved.exists():
            all_float = Spec(prune=False, input_bits=32, residual_bits=None, rules={"*": {"bits": 32}})  # type: ignore[dict-item]
            compressor = attach(model, self.loaders.example, all_float)
            compressor.calibrate([self.loaders.example])  # required, though every range is unused
            phase = Phase(
                "float", compressor, self.loaders.train, self.task.loss.function, config, plan=None,
                folder=self.folder, resume=True, evaluate=self._evaluate, teacher=None, progress=self.progress,
            )  # fmt: skip
            train(phase)
            compressor.detach()
            if self.process.first:
                run_folder.save_weights(model, saved)
        else:
            run_folder.load_weights(model, saved)

    def search(self, model: nn.Module) -> tuple[Compressor, Plan]:
        """Learn bits and channels."""
        recipe = self.recipe
        config = config_for_device(recipe.search, self.process.device, self.say, "search")
        compressor = attach(model, self.loaders.example, recipe.spec)
        if self.process.first:
            compressor.topology.save(self.folder / run_folder.TOPOLOGY)
        steps = self._search_steps()
        learns = any(group["name"] == "gates" for group in compressor.parameter_groups())
        learns = learns and compressor.attachment.method.gated
        open_bops = compressor.cost(compressor.plan()).relative_bops
        if learns and (warning := search_advice.before(config, steps)):
            self.say(warning)
        plan = search(
            compressor, self.loaders.train, self.task.loss.function, config, folder=self.folder, resume=True,
            evaluate=self._evaluate, teacher=self.teacher if config.distillation else None, progress=self.progress,
        )  # fmt: skip
        relative_bops = compressor.cost(plan).relative_bops
        within = "" if config.budget is None else f", within the budget of {config.budget}"
        self.say(f"search: {relative_bops:.3g}% of the bit operations{within}")
        self.advice = search_advice.after(relative_bops, open_bops, config, steps) if learns else ""
        return compressor, plan

    def _search_steps(self) -> int | None:
        """The number of steps of the whole search; None where the loader has no length."""
        config = self.recipe.search
        batches = Batches(self.loaders.train, self.process.device, config.epoch_steps).length
        return None if batches is None else batches * config.epochs

    def finish(self, compressor: Compressor, plan: Plan) -> None:
        """Make bits and channels final, and fine-tune the network if the recipe says so."""
        compressor.fix(plan)
        if self.recipe.finetune is not None:
            self.search_accuracy = self._test(compressor.model, "before fine-tuning").values.get("accuracy")
            config = config_for_device(self.recipe.finetune, self.process.device, self.say, "finetune")
            finetune(
                compressor, self.loaders.train, self.task.loss.function, config, plan=plan, folder=self.folder,
                resume=True, evaluate=self._evaluate, teacher=self.teacher if config.distillation else None,
                progress=self.progress,
            )  # fmt: skip

    def result(self, compressor: Compressor, plan: Plan, float_values: Mapping[str, float] | None) -> Result:
        """Test the final network; write it and its result."""
        found = measure_by_class(compressor.model, self.loaders.test, self.task.metrics)
        result = result_of_run(
            self.recipe, self.folder, compressor, plan, self.process,
            scores=self.task.scores(found.values, float_values), advice=self.advice, budget=self.recipe.search.budget,
        )  # fmt: skip
        result = replace(
            result, class_accuracies=found.class_accuracies, float_class_accuracies=self.float_classes,
            search_accuracy=self.search_accuracy,
        )  # fmt: skip
        if self.process.first:
            run_folder.save_weights(compressor.model, self.folder / run_folder.MODEL)
            result.save(self.folder / run_folder.RESULT)
            write_statistics(compressor, self.loaders, self.folder, self.say)
        return result

    @property
    def _evaluate(self) -> Callable[[nn.Module], dict[str, float]] | None:
        """The evaluation after every epoch, on the validation data; the test data are never used for it."""
        validation, metrics = self.loaders.validation, self.task.metrics
        if validation is None:
            return None
        return lambda model: {
            f"validation_{key}": value for key, value in measure(model, validation, metrics)[0].items()
        }
