"""Every method trains a small network on scikit-learn's digits to within three points of the float network."""

from functools import cache

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import bayesbits as bb
from bayesbits.methods import METHODS
from bayesbits.zoo import data

WIDTHS = {"lsq": (4, 4), "pact": (4, 4), "tqt": (4, 4), "rq": (4, 4)}  # others have their default widths
EDGES = {"lrnet_binary": 32}  # as in the paper; with binary weights everywhere it needs more epochs
MU = {"dq": 0.1, "dq_restricted": 0.1, "fracbits": 0.1, "learned_width": 0.1}  # for percents of the bit operations


@cache
def images() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    digits = data.load("digits", None, size=8)
    return tuple(
        value
        for part in (digits.train, digits.test)
        for value in ((part.images.float() / 255 - 0.5) * 4, part.labels.long())
    )


def loader() -> DataLoader:
    inputs, labels, _, _ = images()
    return DataLoader(
        TensorDataset(inputs, labels), 64, shuffle=True, drop_last=True, generator=torch.Generator().manual_seed(0)
    )


def accuracy(model: nn.Module) -> float:
    _, _, inputs, labels = images()
    with torch.no_grad():
        return (model.eval()(inputs).argmax(1) == labels).float().mean().item() * 100


def new_network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(128, 10),
    )  # fmt: skip


@cache
def float_state() -> tuple[dict[str, Tensor], float]:
    """The trained float network, and its accuracy."""
    torch.manual_seed(0)
    model = new_network()
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    for _ in range(10):
        for inputs, labels in loader():
            optimizer.zero_grad()
            F.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
    return model.state_dict(), accuracy(model)


@pytest.mark.check
@pytest.mark.parametrize("name", METHODS)
def test_training_ends_within_three_points_of_float(name):
    state, reached = float_state()
    assert reached > 95
    model = new_network()
    model.load_state_dict(state)
    weights, activations = WIDTHS.get(name, (None, None))
    spec = bb.Spec(
        method=name, bits=(2, 4, 8), weight_bits=weights, activation_bits=activations, edge_bits=EDGES.get(name)
    )  # fmt: skip
    compressor = bb.attach(model, images()[0][:1], spec)
    config = bb.SearchConfig(epochs=15, mu=MU.get(name, 0.01))
    with torch.random.fork_rng():
        plan = bb.search(compressor, loader(), F.cross_entropy, config, progress=False)
    compressor.fix(plan)
    found, cost = accuracy(model), compressor.cost(plan).relative_bops
    print(f"{name}: {found:.2f}% of {reached:.2f}% at {cost:.3f}%")
    assert found > reached - 3
    assert cost < (5 if METHODS[name].learns_widths else 7) or name in EDGES  # 8/8, where widths start, costs 6.25%
