"""The stages of a run, one by one, on a network of one layer."""

import pytest
import torch
from torch import nn

import bayesbits as bb
from bayesbits import recipes
from bayesbits.recipes.data import Loaders
from bayesbits.recipes.process import Process
from bayesbits.recipes.stages import Stages

MODULE = """
from torch import nn

import bayesbits as bb

def network():
    return nn.Linear(4, 3)
"""


@pytest.fixture
def make(tmp_path, monkeypatch):
    (tmp_path / "users_stages.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    inputs = torch.randn(16, 4, generator=torch.Generator().manual_seed(0))
    batch = (inputs, torch.arange(16) % 3)

    def stages(*overrides: str, validation=None) -> Stages:
        recipe = recipes.load(None, overrides, model="users_stages:network", data="users_stages:data")
        loaders = Loaders([batch] * 5, validation, [batch], inputs[:1], None)
        said: list[str] = []
        made = Stages(recipe, tmp_path, Process(torch.device("cpu")), loaders, progress=False, say=said.append)
        made.said = said
        return made

    return stages


def test_a_new_network_depends_on_the_seed_alone(make):
    one, two, other = make("seed=1"), make("seed=1"), make("seed=2")
    first = one.new_model()
    torch.randn(3)
    assert torch.equal(first.weight, two.new_model().weight)
    assert not torch.equal(first.weight, other.new_model().weight)


def test_a_new_network_has_the_weights_of_the_checkpoint(make, tmp_path):
    trained = nn.Linear(4, 3)
    torch.save(trained.state_dict(), tmp_path / "weights.pth")
    stages = make(f"model.checkpoint={tmp_path / 'weights.pth'}")
    model = stages.new_model()
    assert torch.equal(model.weight, trained.weight)
    values = stages.float_network(model)
    assert stages.tested == 16
    assert stages.said == [f"float network: accuracy {values['accuracy']:.2f}% on the test set"]
    assert stages.teacher is None


def test_the_steps_of_a_search_are_counted_over_all_epochs(make):
    assert make("search.epochs=3")._search_steps() == 15
    assert make("search.epochs=3", "search.epoch_steps=2")._search_steps() == 6


def test_float_training_is_done_once_and_its_weights_are_kept(make, tmp_path):
    short = ("float.epochs=1", "float.epoch_steps=2", "float.weights.lr=0.1", "search.distillation=0.5")
    stages = make(*short)
    model = stages.new_model()
    before = model.weight.detach().clone()
    stages.float_network(model)
    assert not torch.equal(model.weight, before)
    assert type(model) is nn.Linear
    assert torch.equal(stages.teacher.weight, model.weight)
    assert stages.teacher is not model
    again = make(*short)
    restored = again.new_model()
    (tmp_path / "float.checkpoint").unlink()
    again.float_network(restored)
    assert torch.equal(restored.weight, model.weight)


def test_without_fine_tuning_the_plan_is_fixed_and_no_weight_changes(make, tmp_path):
    stages = make("search.epochs=1", "search.epoch_steps=1", "search.gates.lr=0")
    compressor, plan = stages.search(stages.new_model())
    assert (tmp_path / "topology.json").exists()
    before = {name: value.clone() for name, value in compressor.model.named_parameters()}
    stages.finish(compressor, plan)
    assert all(torch.equal(value, before[name]) for name, value in compressor.model.named_parameters())
    assert [group["name"] for group in compressor.parameter_groups()] == ["weights", "ranges"]
    assert stages.result(compressor, plan, {"accuracy": 50.0}).float_accuracy == 50.0
    assert (tmp_path / "model.safetensors").exists()


def test_validation_data_are_evaluated_under_their_own_name(make):
    inputs = torch.eye(3, 4)
    stages = make(validation=[(inputs, torch.tensor([0, 1, 0]))])
    model = nn.Linear(4, 3)
    with torch.no_grad():
        model.weight.copy_(torch.eye(3, 4))
        model.bias.zero_()
    assert stages._evaluate(model) == {"validation_accuracy": pytest.approx(200 / 3)}
    assert make()._evaluate is None


def test_a_budget_is_checked_and_kept_and_the_result_says_so(make):
    stages = make("search.epochs=4", 'search.budget="20 bytes"', "spec.bits=[2, 4, 8]")
    model = stages.new_model()
    stages.check_budget(model, stages.recipe.search.budget)
    assert type(model) is nn.Linear  # the network that is checked is a copy
    compressor, plan = stages.search(model)
    assert compressor.cost(plan).weight_bytes <= 20
    assert stages.said[-1].endswith("within the budget of 20 B")
    stages.finish(compressor, plan)
    result = stages.result(compressor, plan, {"accuracy": 0.0})
    assert result.verdict.startswith(f"within the budget of 20 B: {result.weight_bytes} B, accuracy ")
    assert result.mu > 0
    assert result.advice == ""


def test_a_budget_that_cannot_be_reached_is_refused_before_training(make):
    stages = make()
    stages.check_budget(stages.new_model(), None)
    with pytest.raises(bb.BudgetError, match="cannot be reached"):
        stages.check_budget(stages.new_model(), bb.Budget(weight_bytes=5))


def test_a_budget_that_limits_nothing_is_said_before_training(make):
    stages = make()
    stages.check_budget(stages.new_model(), bb.Budget(weight_bytes=10**6))
    assert stages.said == [
        "budget of 1 MB: this budget limits nothing, as the widest widths and all channels cost 60 B: lower it"
    ]
