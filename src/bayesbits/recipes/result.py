"""The result of a run: metrics and cost of its final network, as the record behind `result.json`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from bayesbits.compression.budget import Budget
from bayesbits.compression.compressor import Compressor
from bayesbits.compression.spec import Spec
from bayesbits.cost import Cost
from bayesbits.recipes.metrics import Score
from bayesbits.recipes.process import Process, versions
from bayesbits.recipes.recipe import Recipe
from bayesbits.recipes.run_folder import METRICS, resume_command, write
from bayesbits.recipes.verdict import verdict_of
from bayesbits.records.plan import FLOAT_BITS, Plan
from bayesbits.records.topology import Topology
from bayesbits.training.execution import Execution, executions_in
from bayesbits.training.metrics import read_metrics

POSTTRAINING = "posttraining"
_MEASURED = "; measured: "


@dataclass(frozen=True)
class Result:
    """The metrics and the cost of the final network of a run.

    Args:
        recipe: The name of the recipe.
        method: "bayesian_bits" or one of its parts (see `method_of`), another method, or "posttraining".
        mu: The weight of the penalty; with a budget, the last one.
        seed: The seed of the run.
        epochs: The epochs of the search; 0 after post-training.
        float_epochs: The epochs of training the float network before the search.
        finetune_epochs: The epochs of fine-tuning after the search.
        accuracy: The accuracy of the final network on the test set in percent; None for other tasks.
        float_accuracy: The accuracy of the float network; None where the search started from scratch.
        relative_bops: The bit operations in percent of those at 32 x 32 bits.
        paper_relative_bops: The same in the paper's convention.
        weight_bytes: The bytes of the packed weights and biases.
        float_weight_bytes: The same for the float network.
        layers: The bits, channels and cost of every layer.
        seconds: The time of training, over all stages and resumed runs.
        device: The device in words.
        versions: The versions of the packages.
        metrics: Every metric of the task on the test set, the main one first.
        advice: What to change where almost nothing was compressed; otherwise empty.
        verdict: One sentence about cost and metric, and whether they are within the budget.
        executions: How each stage of training ran at its end, by the name of the stage.
        stage_seconds: The time of each stage of training, by its name.
        class_accuracies: The accuracy of the final network on the test examples of each class in percent, None for a
            class without examples; empty for other tasks, for more than 1,000 classes and after post-training.
        float_class_accuracies: The same for the float network; empty where the search started from scratch.
        search_accuracy: The accuracy before fine-tuning; None where there was none.
        latency_ms: The milliseconds of one call that the latency table of the budget predicts; None without one.
        measured_latency_ms: The milliseconds of one call of fast.onnx, measured where the file was written; None
            where that was not done, or where there is no latency table.
        latency_threads: The number of threads of both.
    """

    recipe: str
    """The name of the recipe."""
    method: str
    """"bayesian_bits" or one of its parts (see `method_of`), another method, or "posttraining"."""
    mu: float
    """The weight of the penalty; with a budget, the last one."""
    seed: int
    """The seed of the run."""
    epochs: int
    """The epochs of the search; 0 after post-training."""
    float_epochs: int
    """The epochs of training the float network before the search."""
    finetune_epochs: int
    """The epochs of fine-tuning after the search."""
    accuracy: float | None
    """The accuracy of the final network on the test set in percent; None for other tasks."""
    float_accuracy: float | None
    """The accuracy of the float network; None where the search started from scratch."""
    relative_bops: float
    """The bit operations in percent of those at 32 x 32 bits."""
    paper_relative_bops: float
    """The same in the paper's convention."""
    weight_bytes: int
    """The bytes of the packed weights and biases."""
    float_weight_bytes: int
    """The same for the float network."""
    layers: list[dict[str, Any]]
    """The bits, channels and cost of every layer."""
    seconds: float
    """The time of training, over all stages and resumed runs."""
    device: str
    """The device in words."""
    versions: Mapping[str, str]
    """The versions of the packages."""
    metrics: tuple[Score, ...] = ()
    """Every metric of the task on the test set, the main one first; see `scores`."""
    advice: str = ""
    """What to change where almost nothing was compressed; otherwise empty."""
    verdict: str = ""
    """One sentence about cost and metric, and whether they are within the budget; empty in earlier files."""
    executions: Mapping[str, Execution] = field(default_factory=dict)
    """How each stage of training ran at its end, by the name of the stage."""
    stage_seconds: Mapping[str, float] = field(default_factory=dict)
    """The time of each stage of training, by its name; empty in earlier files."""
    class_accuracies: tuple[float | None, ...] = ()
    """The accuracy on the test examples of each class in percent, None for a class without examples; empty where it
    was not measured."""
    float_class_accuracies: tuple[float | None, ...] = ()
    """The same for the float network; empty where the search started from scratch."""
    search_accuracy: float | None = None
    """The accuracy before fine-tuning; None where there was none."""
    latency_ms: float | None = None
    """The milliseconds of one call that the latency table of the budget predicts; None without one."""
    measured_latency_ms: float | None = None
    """The milliseconds of one call of fast.onnx, measured where the file was written; None where that was not done."""
    latency_threads: int | None = None
    """The number of threads of both."""

    def with_measured_latency(self, milliseconds: float, cpu: str, table_cpu: str | None = None) -> Result:
        """The result with the latency that was measured, also in its verdict; an earlier one is replaced.

        `cpu` is the processor of the measurement, and `table_cpu` that of the latency table which predicts it.
        """
        start = self.verdict.partition(_MEASURED)[0]
        verdict = f"{start}{_MEASURED}{milliseconds:.4g} ms on {cpu}"
        if table_cpu is not None and table_cpu != cpu:
            verdict += f", which is not the processor of the latency table, {table_cpu}"
        return replace(self, measured_latency_ms=milliseconds, verdict=verdict)

    @property
    def scores(self) -> tuple[Score, ...]:
        """The metrics; for files of earlier versions, which have none, the accuracy."""
        if self.metrics or self.accuracy is None:
            return self.metrics
        return (Score("accuracy", self.accuracy, self.float_accuracy, "%", higher_is_better=True),)

    def save(self, path: Path) -> None:
        """Write the result as JSON."""
        write(path, json.dumps(asdict(self), indent=2) + "\n")

    @classmethod
    def load(cls, path: Path) -> Result:
        """Read a file that `save` wrote; a ValueError says how to write a damaged one again."""
        try:
            read = json.loads(path.read_text(encoding="utf-8"))
            metrics = tuple(Score(**entry) for entry in read.get("metrics", ()))
            executions = {name: Execution(**entry) for name, entry in read.get("executions", {}).items()}
            lists = {name: tuple(read.get(name, ())) for name in ("class_accuracies", "float_class_accuracies")}
            return cls(**{**read, **lists, "metrics": metrics, "executions": executions})
        except (TypeError, ValueError, AttributeError) as error:
            reason = error if path.stat().st_size else "it is empty"
            raise ValueError(
                f"{path} is not a result, or is damaged: {reason}. A search writes it again from its checkpoints: "
                f"`{resume_command(path.parent)}`; `bayesbits posttrain` does by the same command as before"
            ) from error


def method_of(spec: Spec) -> str:
    """The name of the method: that of the spec, or one of the paper's two restricted settings of Bayesian Bits."""
    if spec.method != "bayesian_bits":
        return spec.method
    if not spec.prune:
        return "bayesian_bits_quantization_only"
    return "bayesian_bits" if len(spec.bits) > 1 else "bayesian_bits_pruning_only"


def layer_rows(cost: Cost, topology: Topology) -> list[dict[str, Any]]:
    """The cost of every layer, with the numbers of channels of the float network, of every product of two activations,
    and of every table of embeddings.

    A product has the widths of its operands in the place of those of a weight and an input, and no channels. A table
    has a width and bytes, and no input: its "activation_bits" are None. A weight of a recurrent layer reads float
    activations.
    """
    none = {"kept_in": 0, "kept_out": 0, "weight_bytes": 0, "parameters": 0, "channels_in": 0, "channels_out": 0}
    products = [
        {"name": entry.name, "macs": entry.macs, "weight_bits": entry.left_bits, "activation_bits": entry.right_bits}
        | {"bops": entry.bops, "share": entry.share, "latency_ms": None, **none}
        for entry in cost.products
    ]
    tables: list[dict[str, Any]] = [
        {**none, "name": entry.name, "macs": entry.macs, "weight_bits": entry.bits, "bops": entry.bops}
        | {"activation_bits": FLOAT_BITS if entry.macs else None, "share": entry.share, "latency_ms": None}
        | {"weight_bytes": entry.weight_bytes, "parameters": entry.parameters}
        for entry in cost.tables
    ]
    layers = [
        asdict(entry)
        | {
            "channels_in": len(topology.layer(entry.name).in_channels),
            "channels_out": len(topology.layer(entry.name).out_channels),
        }
        for entry in cost.layers
    ]
    return [*layers, *products, *tables]


def result_of_run(
    recipe: Recipe, folder: Path, compressor: Compressor, plan: Plan, process: Process, *,
    scores: tuple[Score, ...], advice: str = "", budget: Budget | None = None,
) -> Result:  # fmt: skip
    """The result of a run; the time of training is read from the metrics in its folder."""
    topology = compressor.topology
    float_plan = Plan.uniform(topology, weights=32, activations=32, input_bits=32, residual_bits=None)
    seconds: dict[str, float] = {}
    lines = read_metrics(folder / METRICS) if process.first and (folder / METRICS).exists() else []
    for line in lines:
        seconds[line["phase"]] = line.get("seconds", seconds.get(line["phase"], 0.0))
    table = None if budget is None else budget.table
    cost = compressor.cost(plan, table)
    result = make_result(
        recipe, cost, compressor.cost(float_plan), topology,
        scores=scores, seconds=sum(seconds.values()), device=process.description, versions=versions(), advice=advice,
        executions=executions_in(lines),
    )  # fmt: skip
    mu = recipe.search.mu if recipe.search.mu is not None else _last_mu(lines)
    result = replace(result, mu=mu, verdict=verdict_of(compressor, plan, cost, scores, budget), stage_seconds=seconds)
    return replace(result, latency_ms=cost.latency_ms, latency_threads=None if table is None else table.threads)


def _last_mu(lines: Iterable[Mapping[str, Any]]) -> float:
    """The weight of the penalty that a budget has led to: the largest one in the last line of metrics that has some."""
    weights = [[value for name, value in line.items() if name.startswith("mu_")] for line in lines]
    return max(next((found for found in reversed(weights) if found), [0.0]))


def make_result(
    recipe: Recipe, cost: Cost, float_cost: Cost, topology: Topology, *,
    scores: tuple[Score, ...], seconds: float, device: str, versions: Mapping[str, str], advice: str = "",
    executions: Mapping[str, Execution] | None = None,
) -> Result:  # fmt: skip
    """The result of a run, from its costs and scores."""
    accuracy = next((score for score in scores if (score.name, score.unit) == ("accuracy", "%")), None)
    return Result(
        recipe=recipe.name,
        method=method_of(recipe.spec),
        mu=recipe.search.mu or 0.0,
        seed=recipe.seed,
        epochs=recipe.search.epochs,
        float_epochs=recipe.float_training.epochs if recipe.float_training else 0,
        finetune_epochs=recipe.finetune.epochs if recipe.finetune else 0,
        accuracy=None if accuracy is None else accuracy.value,
        float_accuracy=None if accuracy is None else accuracy.float_value,
        relative_bops=cost.relative_bops,
        paper_relative_bops=cost.paper_relative_bops,
        weight_bytes=cost.weight_bytes,
        float_weight_bytes=float_cost.weight_bytes,
        layers=layer_rows(cost, topology),
        seconds=seconds,
        device=device,
        versions=versions,
        metrics=scores,
        advice=advice,
        executions=executions or {},
    )
