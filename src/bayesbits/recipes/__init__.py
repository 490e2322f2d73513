"""Recipes: a whole experiment as one TOML file, and what runs it.

    from bayesbits import recipes

    recipe = recipes.load("digits-lenet5", ["search.mu=0.02"])
    result = recipes.run(recipe, "runs/digits")
    compressor = recipes.restore("runs/digits").compressor

Those that the package carries lie in `shipped/`; a path reads any other file.
"""

from bayesbits.recipes.finished import FinishedRun, restore
from bayesbits.recipes.reading import load, names
from bayesbits.recipes.recipe import DataConfig, FloatConfig, ModelConfig, Recipe
from bayesbits.recipes.result import Result
from bayesbits.recipes.run import TrainedNetwork, run, trained_network
from bayesbits.recipes.writing import to_toml

__all__ = [
    "DataConfig",
    "FinishedRun",
    "FloatConfig",
    "ModelConfig",
    "Recipe",
    "Result",
    "TrainedNetwork",
    "load",
    "names",
    "restore",
    "run",
    "to_toml",
    "trained_network",
]
