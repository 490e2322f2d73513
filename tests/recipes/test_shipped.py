"""The recipes that the package carries: each finds its data and attaches to its network."""

import pytest
import torch

import bayesbits as bb
from bayesbits import recipes
from bayesbits.recipes.data import open_data
from bayesbits.recipes.factories import build_model
from bayesbits.recipes.process import Process
from tests.recipes.made_data import made_for

CPU = Process(torch.device("cpu"))
LAYERS = {"lenet5": 4, "vgg7": 8, "resnet18": 21, "resnet20": 20, "mobilenetv2": 53, "vit": 10}


@pytest.mark.parametrize("name", recipes.names())
def test_a_shipped_recipe_finds_its_data_and_attaches_to_its_network(name, tmp_path):
    recipe = recipes.load(name, made_for(name, tmp_path))
    assert recipe.description
    assert recipe.source
    loaders = open_data(recipe.data, CPU, recipe.seed)
    images, labels = next(iter(loaders.train))
    assert images.shape[1:] == loaders.example.shape[1:]
    assert images.dtype == torch.float32
    assert int(labels.max()) < loaders.classes
    model, _ = build_model(recipe.model.name, recipe.model.options, loaders.classes)
    compressor = bb.attach(model, loaders.example, recipe.spec)
    assert len(compressor.topology.layers) == LAYERS[recipe.model.name]
    left = [
        entry for entry in compressor.topology.unsupported if entry.what != "residual operand"
    ]  # of the transformer
    assert not left


def test_the_papers_settings_are_the_papers():
    for name, epochs in (("mnist-lenet5", 100), ("cifar10-vgg7", 300)):
        recipe = recipes.load(name)
        assert (recipe.search.epochs, recipe.search.mu, recipe.data.batch_size) == (epochs, 0.01, 128)
        for group in (recipe.search.weights, recipe.search.gates, recipe.search.ranges):
            assert group == bb.OptimizerConfig("adam", 1e-3, "linear")
        assert (recipe.search.calibration, recipe.search.calibration_bits) == ("mse", None)  # the paper does not say
        assert recipe.float_training is None
        assert recipe.finetune is None
    for name in ("imagenet-resnet18", "imagenet-mobilenetv2"):
        recipe = recipes.load(name)
        assert (recipe.search.epochs, recipe.finetune.epochs, recipe.data.batch_size) == (30, 10, 384)
        assert (recipe.search.weights.optimizer, recipe.search.weights.lr) == ("sgd", 3e-3)
        assert [round(30 * part) for part in recipe.search.gates.milestones] == [10, 20]
        assert recipe.finetune.weights == bb.OptimizerConfig("sgd", 1e-4, "cosine")
        assert recipe.finetune.ranges == bb.OptimizerConfig("adam", 1e-4, "cosine")
        assert recipe.search.calibration == "minmax"
