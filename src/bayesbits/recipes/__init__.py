"""Recipes: a whole experiment as one TOML file, and the code that runs it.

    from bayesbits import recipes

    recipe = recipes.load("digits-lenet5", ["search.mu=0.02"])
    result = recipes.run(recipe, "runs/digits")
    compressor = recipes.restore("runs/digits").compressor

`recipe` defines the parts of a recipe and `toml` reads and writes them. `data`, `factories` and `tasks` turn its tables
into loaders, a network, a loss and metrics. `run` runs the `stages` and writes the files that `run_folder` lists. The
recipes that come with the package lie in `shipped/`.
"""

from bayesbits.recipes.recipe import DataConfig, FloatConfig, ModelConfig, Recipe, TaskConfig
from bayesbits.recipes.result import Result
from bayesbits.recipes.run import FinishedRun, TrainedNetwork, restore, run, trained_network
from bayesbits.recipes.toml import load, names, to_toml

__all__ = [
    "DataConfig",
    "FinishedRun",
    "FloatConfig",
    "ModelConfig",
    "Recipe",
    "Result",
    "TaskConfig",
    "TrainedNetwork",
    "load",
    "names",
    "restore",
    "run",
    "to_toml",
    "trained_network",
]
