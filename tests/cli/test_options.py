"""The choices and defaults of the options are those of the library, which they repeat without importing it."""

from typing import get_args

import pytest
import typer

from bayesbits import recipes
from bayesbits.cli import options
from bayesbits.functional.gates import KINDS
from bayesbits.methods import METHODS
from bayesbits.posttraining import PosttrainConfig
from bayesbits.posttraining.config import LEARN
from bayesbits.posttraining.config import LOSSES as POSTTRAIN_LOSSES
from bayesbits.recipes.recipe import LOSSES, METRICS, TASKS


def test_choices_and_defaults_are_those_of_the_library():
    assert get_args(options.Task) == TASKS
    assert get_args(options.Gates) == KINDS
    assert get_args(options.Learn) == LEARN
    assert get_args(options.Method) == tuple(METHODS)
    assert options.LOSSES == LOSSES
    assert POSTTRAIN_LOSSES[1:] == options.FLOAT_LOSSES
    assert options.METRICS == METRICS
    assert PosttrainConfig.steps == options.POSTTRAIN_STEPS
    assert PosttrainConfig.gate_lr == options.POSTTRAIN_GATE_LR
    assert options.shipped_recipes() == sorted(recipes.names())


def test_a_recipe_or_a_network_with_data_is_required():
    for incomplete in ({}, {"model": "mine:network"}, {"data": "mine:loaders"}):
        with pytest.raises(typer.BadParameter, match="give a recipe, or both --model and --data"):
            options.RecipeOptions(**incomplete)
    assert options.RecipeOptions(model="mine:network", data="mine:loaders").recipe is None
    assert options.RecipeOptions("digits-lenet5").model is None
