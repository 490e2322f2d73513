"""Learning rates by hand, and one optimizer for each group that learns."""

import pytest
import torch

import bayesbits as bb
from bayesbits.training.optimizers import make_optimizers
from tests.training.problems import compressor, config, data


@pytest.mark.parametrize(
    ("options", "lrs"),
    [
        ({"schedule": "constant"}, {0: 0.6, 0.5: 0.6, 0.99: 0.6}),
        ({"schedule": "linear"}, {0: 0.6, 0.5: 0.6, 2 / 3: 0.6, 5 / 6: 0.3, 0.9: 0.18, 1: 0.0}),
        ({"schedule": "cosine"}, {0: 0.6, 1 / 3: 0.45, 0.5: 0.3, 2 / 3: 0.15, 1: 0.0}),
        ({"schedule": "steps", "milestones": (0.5, 0.75)}, {0: 0.6, 0.49: 0.6, 0.5: 0.06, 0.74: 0.06, 0.75: 0.006}),
    ],
)
def test_learning_rates_by_hand(options, lrs):
    optimizers = make_optimizers(compressor(), config(weights={"lr": 0.6, **options}, gates={"schedule": "constant"}))
    for part, lr in lrs.items():
        optimizers.set_progress(part)
        assert optimizers.lrs()["weights"] == pytest.approx(lr, abs=1e-8)
        assert optimizers.lrs()["gates"] == pytest.approx(1e-3)


def test_groups_that_do_not_learn_have_no_optimizer():
    handle = compressor()
    assert make_optimizers(handle, config()).lrs().keys() == {"weights", "gates", "ranges"}
    handle.fix()
    assert make_optimizers(handle, bb.FinetuneConfig()).lrs().keys() == {"weights", "ranges"}


def test_a_state_from_a_device_leaves_options_and_learning_rates_as_they_are_here():
    handle = compressor()
    handle.calibrate([data().images])
    one, other = make_optimizers(handle, config()), make_optimizers(handle, config())
    handle.model(data().images).sum().backward()
    one.step()
    state = one.state_dict(handle.model)
    for group in state["weights"]["param_groups"]:
        group.update(lr=torch.tensor(7.0), capturable=True)
    other.load_state_dict(state)
    other.set_progress(0.0)
    assert other.lrs()["weights"] == 1e-3
    other.step()
    assert all(values["step"] == 2 for values in other.state_dict(handle.model)["weights"]["state"].values())


def test_a_method_brings_the_optimizer_of_its_ranges_where_nothing_else_is_said():
    model = torch.nn.Sequential(torch.nn.Linear(4, 2))
    handle = bb.attach(model, torch.randn(1, 4), bb.Spec(method="lsq"))
    handle.calibrate([torch.randn(8, 4)])
    own = make_optimizers(handle, bb.SearchConfig())
    assert isinstance(own.members["ranges"], torch.optim.SGD)
    assert isinstance(own.members["weights"], torch.optim.Adam)
    assert own.lrs()["ranges"] == pytest.approx(1e-2)
    said = make_optimizers(handle, bb.SearchConfig(ranges={"lr": 0.5}))
    assert isinstance(said.members["ranges"], torch.optim.Adam)
    assert said.lrs()["ranges"] == 0.5
    handle.fix()
    finer = make_optimizers(handle, bb.FinetuneConfig())
    assert isinstance(finer.members["ranges"], torch.optim.SGD)
    assert finer.lrs()["ranges"] == pytest.approx(1e-3)
    assert finer.configs["ranges"].schedule == "cosine"
