"""Tasks: what a recipe names, and what does not fit refused before any training."""

import sys

import pytest
import torch

from bayesbits import recipes
from bayesbits.recipes.recipe import TaskConfig
from bayesbits.recipes.tasks import learning_task

MODULE = """
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
vectors, maps = torch.randn(16, 4), torch.randn(16, 1, 4, 4)

def vector_net(outputs=3):
    return nn.Linear(4, outputs)

def map_net():
    return nn.Conv2d(1, 3, 1)

def token_net():
    return nn.Sequential(nn.Embedding(3, 4), nn.Flatten(), nn.Linear(8, 3))

def tokens():
    return batches(torch.arange(32).view(16, 2) % 5, torch.arange(16) % 3)

def named():
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 3)
        def forward(self, x):
            return {"logits": self.layer(x)}
    return Named()

def batches(inputs, targets, test=None):
    return [(inputs, targets)], [(inputs, targets if test is None else test)]

def classes():
    return batches(vectors, torch.arange(16) % 3)

def shuffled():
    inputs, targets = classes()[0][0]
    own = torch.Generator().manual_seed(0)
    return DataLoader(TensorDataset(inputs, targets), 4, shuffle=True, generator=own), classes()[1]

def wrong_classes():
    return batches(vectors, torch.arange(16) % 4)

def wrong_test():
    return batches(vectors, torch.arange(16) % 3, test=torch.rand(16))

def numbers():
    return batches(vectors, vectors[:, :1])

def flat_numbers():
    return batches(vectors, vectors[:, 0])

def pixels():
    return batches(maps, (maps[:, 0] > 0).long())

def few():
    return batches(vectors[:, :3], torch.arange(16) % 3)

def my_loss(output, targets):
    return F.cross_entropy(output["logits"], targets)

def my_metric(output, targets):
    return (output["logits"].argmax(1) == targets).double().mean()

def no_scalar(output, targets):
    return (output - targets).abs()
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    (tmp_path / "users_tasks.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def searched(folder, model, data, overrides=(), **asked):
    own = {key: value if ":" not in value else f"users_tasks{value}" for key, value in asked.items()}
    recipe = recipes.load(
        None, ["search.epochs=1", *overrides], model=f"users_tasks:{model}", data=f"users_tasks:{data}", **own
    )
    return recipes.run(recipe, folder / "run", device="cpu", progress=False, say=lambda _: None)


@pytest.mark.parametrize(
    ("model", "data", "asked", "said"),
    [
        ("vector_net", "numbers", {}, "the targets are float32 .16, 1.; for numbers choose the task regression"),
        ("map_net", "pixels", {}, "network gives float32 .16, 3, 4, 4.; .* choose the task segmentation"),
        ("vector_net", "wrong_classes", {}, "has logits for 3 classes, and the targets go from 0 to 3"),
        ("vector_net", "wrong_test", {}, "the metric accuracy cannot be computed on the test data"),
        ("vector_net", "flat_numbers", {"task": "regression"}, r"gives \[16, 3\], and the targets are \[16\]"),
        ("vector_net", "classes", {"task": "regression"}, "it is for float numbers, and the targets are int64"),
        ("vector_net", "classes", {"task": "segmentation"}, "classes, places....*the network gives float32 .16, 3."),
        ("vector_net", "classes", {"metric": "r2"}, "the metric R2 cannot be computed on the training data"),
        ("vector_net", "few", {}, "the network cannot be run on the training data"),
        ("token_net", "tokens", {}, "the network cannot be run on the training data: index out of range"),
        ("named", "classes", {}, "the network gives a dict"),
        ("vector_net", "classes", {"loss": ":my_loss"}, "the loss users_tasks:my_loss .* it raised IndexError"),
        ("vector_net", "numbers", {"loss": ":no_scalar", "metric": "mse"}, "where a scalar tensor is wanted"),
        ("named", "classes", {"loss": ":nothing"}, "has no function 'nothing'"),
        ("named", "classes", {"metric": ":my_metric"}, "set task.higher_is_better to say whether"),
    ],
)
def test_what_does_not_fit_is_refused_before_training(mine, model, data, asked, said):
    with pytest.raises(ValueError, match=said):
        searched(mine, model, data, **asked)
    assert not (mine / "run").exists()


def test_every_named_task_and_functions_of_ones_own_are_trained_and_judged(mine):
    (accuracy,) = searched(mine / "a", "vector_net", "classes").scores
    assert (accuracy.name, accuracy.unit, accuracy.higher_is_better) == ("accuracy", "%", True)
    result = searched(mine / "b", "map_net", "pixels", task="segmentation")
    assert [score.name for score in result.scores] == ["mean IoU", "pixel accuracy"]
    assert result.accuracy is None
    assert recipes.Result.load(mine / "b/run/result.json") == result
    result = searched(mine / "c", "vector_net", "numbers", ["model.options.outputs=1"], task="regression", metric="mae")
    assert [(score.name, score.higher_is_better) for score in result.scores][:2] == [("MAE", False), ("MSE", False)]
    own = ["task.higher_is_better=true"]
    (score,) = searched(mine / "d", "named", "classes", own, loss=":my_loss", metric=":my_metric").scores
    assert score.name == "my_metric"
    assert 0 <= score.value <= 1


def test_trying_leaves_no_trace_in_the_run(mine, monkeypatch):
    searched(mine / "a", "vector_net", "shuffled")
    monkeypatch.setattr(sys.modules["bayesbits.recipes.run"], "check_fits", lambda *_arguments, **_options: None)
    searched(mine / "b", "vector_net", "shuffled")
    one, other = ((mine / name / "run/model.safetensors").read_bytes() for name in "ab")
    assert one == other


def test_ignored_classes_play_no_part_in_loss_and_metrics():
    task = learning_task(TaskConfig("segmentation", ignore_index=9))
    logits, targets = torch.randn(1, 2, 1, 2), torch.tensor([[[0, 9]]])
    task.check(logits, targets, "training data", loss=True)
    assert task.loss.function(logits, targets) == torch.nn.functional.cross_entropy(logits[..., :1], targets[..., :1])


def test_a_task_is_written_out_with_the_recipe():
    recipe = recipes.load("digits-lenet5", ["task.name=segmentation", "task.ignore_index=255"])
    assert 'name = "segmentation"\nignore_index = 255' in recipes.to_toml(recipe)
