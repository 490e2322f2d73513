"""Options that several commands share, and the recipe that they come to."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer

from bayesbits.recipes import Recipe, load

RecipeName = Annotated[
    str | None, typer.Argument(help="A recipe that the package carries (see `bayesbits recipes`), or a TOML file.")
]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a setting, such as search.mu=0.1; may be repeated."),
]
Model = Annotated[
    str | None,
    typer.Option(metavar="PACKAGE.MODULE:FACTORY", help="Your network: a function that returns an nn.Module."),
]
Data = Annotated[
    str | None,
    typer.Option(
        metavar="PACKAGE.MODULE:FACTORY",
        help="Your data: a function that returns loaders (train, test) or (train, validation, test), or a "
        "bayesbits.zoo.data.Data.",
    ),
]
TaskName = Annotated[
    Literal["classification", "segmentation", "regression"] | None,
    typer.Option("--task", help="What the network is asked for: loss and metrics; classification by default."),
]
LossName = Annotated[
    str | None,
    typer.Option(
        "--loss", metavar="NAME", help="cross_entropy, mse, mae, or your own: package.module:function(output, targets)."
    ),
]
MetricName = Annotated[
    str | None,
    typer.Option(
        "--metric",
        metavar="NAME",
        help="accuracy, mean_iou, pixel_accuracy, mse, mae, r2, or your own: package.module:function(output, targets), "
        "with --set task.higher_is_better=true or false.",
    ),
]
Out = Annotated[Path | None, typer.Option(help="The folder to write to; runs/RECIPE by default.")]
Device = Annotated[str | None, typer.Option(help="Such as cpu or cuda:1; a GPU by default, if there is one.")]


def asked_recipe(
    recipe: str | None, overrides: Sequence[str] | None, *, model: str | None, data: str | None, task: str | None,
    loss: str | None, metric: str | None,
) -> Recipe:  # fmt: skip
    """The recipe with everything that the options change."""
    if recipe is None and (model is None or data is None):
        raise typer.BadParameter("give a recipe, or both --model and --data", param_hint="RECIPE")
    return load(recipe, overrides or (), model=model, data=data, task=task, loss=loss, metric=metric)


def file_name(recipe: Recipe) -> str:
    """What a recipe's folder is called by default."""
    return recipe.name.replace(":", ".")
