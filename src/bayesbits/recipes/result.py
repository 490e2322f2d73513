"""What a run came to: the record behind `result.json`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bayesbits.compression.spec import Spec
from bayesbits.cost import Cost
from bayesbits.recipes.folder import resume_command, write
from bayesbits.recipes.metrics import Score
from bayesbits.recipes.recipe import Recipe
from bayesbits.records.topology import Topology
from bayesbits.training.execution import Execution

POSTTRAINING = "posttraining"


@dataclass(frozen=True)
class Result:
    """Accuracy and cost of the final network, and how they came about."""

    recipe: str
    """The recipe's name."""
    method: str
    """Which bits and channels were learned; see `method_of`. Or "posttraining": bits alone, no weight changed."""
    mu: float
    """The weight of the penalty."""
    seed: int
    epochs: int
    """The epochs of the search; 0 after post-training."""
    float_epochs: int
    """The epochs of training the float network before it; 0: none."""
    finetune_epochs: int
    """The epochs of fine-tuning after it; 0: none."""
    accuracy: float | None
    """Of the final network on the test set, in percent; None where the task is no classification."""
    float_accuracy: float | None
    """Of the float network that the search started from; None where it started from scratch."""
    relative_bops: float
    """Bit operations in percent of those at 32 x 32 bits."""
    paper_relative_bops: float
    """The same in the paper's convention."""
    weight_bytes: int
    """The packed weights and biases."""
    float_weight_bytes: int
    """The same of the float network."""
    layers: list[dict[str, Any]]
    """Bits, channels and cost of every layer."""
    seconds: float
    """How long training took, in all of its sittings and stages."""
    device: str
    versions: Mapping[str, str]
    metrics: tuple[Score, ...] = ()
    """Every metric of the task on the test set, the one that the recipe is about first; see `scores`."""
    advice: str = ""
    """What to change where almost nothing was compressed."""
    executions: Mapping[str, Execution] = field(default_factory=dict)
    """Which way each stage of the training ran, at its end; by the stage's name."""

    @property
    def scores(self) -> tuple[Score, ...]:
        """The metrics; of results that were written before there were any, the accuracy."""
        if self.metrics or self.accuracy is None:
            return self.metrics
        return (Score("accuracy", self.accuracy, self.float_accuracy, "%", higher_is_better=True),)

    def save(self, path: Path) -> None:
        """Write it as JSON."""
        write(path, json.dumps(asdict(self), indent=2) + "\n")

    @classmethod
    def load(cls, path: Path) -> Result:
        """Read what `save` wrote; an error that says how to make it again where it cannot be read."""
        try:
            read = json.loads(path.read_text(encoding="utf-8"))
            metrics = tuple(Score(**entry) for entry in read.get("metrics", ()))
            executions = {name: Execution(**entry) for name, entry in read.get("executions", {}).items()}
            return cls(**{**read, "metrics": metrics, "executions": executions})
        except (TypeError, ValueError, AttributeError) as error:
            reason = error if path.stat().st_size else "it is empty"
            raise ValueError(
                f"{path} is not a result, or is damaged: {reason}. A search writes it again from its checkpoints: "
                f"{resume_command(path.parent)}; `bayesbits posttrain` does by the same command as before"
            ) from error


def method_of(spec: Spec) -> str:
    """Bayesian Bits, or one of the two settings that the paper compares with it."""
    if not spec.prune:
        return "bayesian_bits_quantization_only"
    return "bayesian_bits" if len(spec.bits) > 1 else "bayesian_bits_pruning_only"


def layer_rows(cost: Cost, topology: Topology) -> list[dict[str, Any]]:
    """Every layer's cost, with the channels that it had to begin with."""
    return [
        asdict(entry)
        | {
            "channels_in": len(topology.layer(entry.name).in_channels),
            "channels_out": len(topology.layer(entry.name).out_channels),
        }
        for entry in cost.layers
    ]


def make_result(
    recipe: Recipe, cost: Cost, float_cost: Cost, topology: Topology, *,
    scores: tuple[Score, ...], seconds: float, device: str, versions: Mapping[str, str], advice: str = "",
    executions: Mapping[str, Execution] | None = None,
) -> Result:  # fmt: skip
    """The result of a run."""
    accuracy = next((score for score in scores if (score.name, score.unit) == ("accuracy", "%")), None)
    return Result(
        recipe=recipe.name,
        method=method_of(recipe.spec),
        mu=recipe.search.mu,
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
