"""Options that several commands share.

Nothing of the library is imported, so that help needs no torch: the choices and defaults below repeat those of the
library, and a test compares them.
"""

from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Literal

import typer

Task = Literal["classification", "segmentation", "regression"]
Gates = Literal["hard_concrete", "hard_sigmoid", "sigmoid"]
Method = Literal[
    "bayesian_bits", "reinforce", "lsq", "pact", "qt", "tqt", "rq", "wage", "twn", "lrnet", "lrnet_binary", "dq",
    "dq_restricted", "fracbits", "learned_width",
]  # fmt: skip
Learn = Literal["gates", "gates+ranges"]
Planner = Literal["best", "learned", "solver"]
Labels = Literal["given", "none"]
LOSSES = ("cross_entropy", "mse", "mae")
FLOAT_LOSSES = ("output", "layers", "cosine", "mse")
METRICS = ("accuracy", "mean_iou", "pixel_accuracy", "mse", "mae", "r2")
POSTTRAIN_STEPS = 64
POSTTRAIN_GATE_LR = 0.2


def shipped_recipes() -> list[str]:
    """The names of the recipes in the package, for shell completion."""
    folder = files("bayesbits") / "recipes" / "shipped"
    return sorted(path.name.removesuffix(".toml") for path in folder.iterdir() if path.name.endswith(".toml"))


def _complete_recipe(incomplete: str) -> list[str]:
    return [name for name in shipped_recipes() if name.startswith(incomplete)]


RecipeArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="RECIPE",
        help="A recipe of the package (see `bayesbits recipes`), or a TOML file.",
        autocompletion=_complete_recipe,
    ),
]
RecipeArguments = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="RECIPE",
        help="Recipes of the package (see `bayesbits recipes`), TOML files, or files of runs.",
        autocompletion=_complete_recipe,
    ),
]
LatencyTableOption = Annotated[
    Path | None,
    typer.Option(
        "--latency-table",
        metavar="FILE",
        help='The latency table of the network, which `bayesbits measure` writes; for a budget such as "2.5 ms".',
    ),
]
RunFolder = Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a finished run.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a setting; may be repeated."),
]
ModelOption = Annotated[
    str | None,
    typer.Option("--model", metavar="MODULE:FUNCTION", help="Your network: a function that returns an nn.Module."),
]
DataOption = Annotated[
    str | None,
    typer.Option(
        "--data",
        metavar="MODULE:FUNCTION",
        help="Your data: a function that returns loaders (train, test) or (train, validation, test), or a "
        "bayesbits.zoo.data.Data.",
    ),
]
TaskOption = Annotated[
    Task | None, typer.Option("--task", help="Determines loss and metrics; classification by default.")
]
LossOption = Annotated[
    str | None,
    typer.Option(
        "--loss", metavar="NAME", help=f"{', '.join(LOSSES)}, or MODULE:FUNCTION, your function of output and targets."
    ),
]
PosttrainLossOption = Annotated[
    str | None,
    typer.Option(
        "--loss",
        metavar="NAME",
        help=f"{', '.join(LOSSES)}, or MODULE:FUNCTION, your function of output and targets. With --labels none: "
        f"{', '.join(FLOAT_LOSSES)}, or MODULE:FUNCTION, your function of output and float output.",
    ),
]
MetricOption = Annotated[
    str | None,
    typer.Option(
        "--metric",
        metavar="NAME",
        help=f"{', '.join(METRICS)}, or MODULE:FUNCTION, your function of output and targets, with --set "
        "task.higher_is_better=true or false.",
    ),
]
MethodOption = Annotated[
    Method | None,
    typer.Option(
        "--method",
        help="How tensors are quantized: bayesian_bits, or a method to compare with. Widths of a method that fixes "
        "them: --set spec.weight_bits=4 --set spec.activation_bits=4.",
    ),
]
DeviceOption = Annotated[
    str | None, typer.Option("--device", help="Such as cpu or cuda:1; by default a GPU if there is one.")
]
CheckpointOption = Annotated[
    Path | None, typer.Option("--checkpoint", help="Trained weights; without them the recipe's float training runs.")
]
LabelsOption = Annotated[
    Labels,
    typer.Option(
        "--labels",
        help="none: the output of the float network takes the place of labels, and training loaders need give none. "
        "The test, which decides nothing, still needs labels.",
    ),
]
NumExamplesOption = Annotated[
    int, typer.Option("--num-examples", min=1, help="The number of training examples that are used.")
]
PerChannelOption = Annotated[
    bool,
    typer.Option(
        "--per-channel/--per-tensor",
        help="One range for each output channel of a weight, or one for each weight tensor, whatever the recipe says.",
    ),
]
PosttrainOutput = Annotated[
    Path | None, typer.Option("--output", "-o", help="The folder to write to; runs/posttrain-RECIPE by default.")
]


@dataclass(frozen=True)
class RecipeOptions:
    """What determines a recipe: its name or file, and the options that change it."""

    recipe: str | None = None
    overrides: list[str] | None = None
    model: str | None = None
    data: str | None = None
    task: str | None = None
    loss: str | None = None
    metric: str | None = None
    method: str | None = None

    def __post_init__(self) -> None:
        if self.recipe is None and (self.model is None or self.data is None):
            raise typer.BadParameter("give a recipe, or both --model and --data", param_hint="RECIPE")
