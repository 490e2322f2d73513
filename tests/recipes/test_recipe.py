"""The parts of a recipe: what each accepts, and parts that contradict each other."""

import pytest

import bayesbits as bb
from bayesbits import recipes
from bayesbits.recipes import DataConfig, FloatConfig, ModelConfig, Recipe, TaskConfig


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"name": "detection"}, "it is one of classification, segmentation, regression"),
        ({"loss": "hinge"}, "cross_entropy, mse, mae, or package.module:function"),
        ({"metric": "f1"}, "mean_iou"),
        ({"higher_is_better": True}, "it is only for a metric of your own"),
        ({"ignore_index": 0.5}, "it is an integer"),
    ],
)
def test_a_task_that_is_not_known_is_refused(options, said):
    with pytest.raises(ValueError, match=f"TaskConfig.{next(iter(options))} is .*{said}"):
        TaskConfig(**options)


@pytest.mark.parametrize(
    ("make", "options", "said"),
    [
        (DataConfig, {"name": 3}, "DataConfig.name is 3; it is text"),
        (DataConfig, {"name": "digits", "folder": 3}, "DataConfig.folder is 3; it is text"),
        (DataConfig, {"name": "digits", "options": 3}, "DataConfig.options is 3; it is a table"),
        (DataConfig, {"name": "digits", "padding": -1}, "DataConfig.padding is -1; it is an integer of at least 0"),
        (ModelConfig, {"name": "lenet5", "checkpoint": 3}, "ModelConfig.checkpoint is 3; it is text"),
        (ModelConfig, {"name": "lenet5", "pretrained": 1}, "ModelConfig.pretrained is 1; it is True or False"),
    ],
)
def test_an_option_of_the_wrong_type_is_named(make, options, said):
    with pytest.raises(ValueError, match=said):
        make(**options)


def test_the_loss_and_the_probabilities_follow_from_the_task():
    assert TaskConfig().loss_name == "cross_entropy"
    assert TaskConfig("regression").loss_name == "mse"
    assert TaskConfig("regression", loss="mae").loss_name == "mae"
    assert TaskConfig().has_logits
    assert TaskConfig(loss="my.module:loss").has_logits
    assert not TaskConfig(metric="mae").has_logits
    assert not TaskConfig("segmentation").has_logits


def test_float_training_is_fine_tuning_with_the_defaults_of_a_search():
    assert FloatConfig().weights == bb.SearchConfig().weights
    assert FloatConfig().frozen_statistics == 0
    assert FloatConfig().epochs == bb.FinetuneConfig().epochs


def test_the_float_network_is_loaded_or_trained():
    model = ModelConfig("lenet5", checkpoint="weights.pth")
    with pytest.raises(ValueError, match="loaded or trained, not both"):
        Recipe("mine", DataConfig("digits"), model, float_training=FloatConfig())
    with pytest.raises(ValueError, match=r"Recipe.seed is -1; it is an integer of at least 0"):
        Recipe("mine", DataConfig("digits"), model, seed=-1)


def test_distillation_needs_a_trained_float_network():
    with pytest.raises(ValueError, match="no trained float network"):
        recipes.load("mnist-lenet5", ["search.distillation=0.5"])
    assert recipes.load("digits-lenet5", ["search.distillation=0.5"]).search.distillation == 0.5


def test_a_teacher_is_only_for_classification():
    with pytest.raises(ValueError, match="probabilities of classes"):
        recipes.load("imagenet-resnet18", ["finetune.distillation=0.5", "task.name=regression"])
