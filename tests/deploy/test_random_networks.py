"""Random plans on random networks: depth, residuals, concatenation, groups, signed and unsigned activations.

Then the same networks behind random calls: what they take and return, in which precision, and with which names.
"""

from typing import Any

import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils import parametrizations

import bayesbits as bb
from tests.deploy.calls import check_call
from tests.deploy.comparison import check_equal
from tests.deploy.networks import compress
from tests.graph.networks import IMAGES, randomize
from tests.graph.test_random_networks import Random

KINDS = ("conv", "residual", "concatenation", "depthwise", "grouped", "pool", "shuffled", "weight", "spectral")
NORMS = {"weight": parametrizations.weight_norm, "spectral": parametrizations.spectral_norm}


class Built(nn.Module):
    """A chain of blocks of the given kinds, each behind its activation function."""

    def __init__(self, blocks: list[tuple[str, bool]]) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, padding=1)
        self.blocks = blocks
        self.layers, self.norms, self.sides = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        for kind, normed in blocks:
            groups = {"depthwise": 6, "grouped": 2}.get(kind, 1)
            layer = nn.Conv2d(6, 3 if kind == "concatenation" else 6, 3, padding=1, groups=groups)
            self.layers.append(NORMS[kind](layer) if kind in NORMS else layer)
            self.norms.append(nn.BatchNorm2d(3 if kind == "concatenation" else 6) if normed else nn.Identity())
            self.sides.append(nn.Conv2d(6, 3, 1))
        self.head = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for (kind, normed), layer, norm, side in zip(self.blocks, self.layers, self.norms, self.sides, strict=True):
            x = F.relu6(x) if normed else F.gelu(x)  # behind GELU there are values below zero
            y = norm(layer(x))
            if kind == "residual":
                x = x + y
            elif kind == "concatenation":
                x = torch.cat((y, side(x)), dim=1)
            elif kind == "shuffled":
                x = y.view(-1, 2, 3, 6, 6).transpose(1, 2).contiguous().view(-1, 6, 6, 6)
            else:
                x = F.max_pool2d(y, 3, 1, 1) if kind == "pool" else y
        return self.head(F.relu(x).mean((2, 3)))


@settings(max_examples=8, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(
    blocks=st.lists(st.tuples(st.sampled_from(KINDS), st.booleans()), min_size=1, max_size=4),
    seed=st.integers(0, 1000),
    residual_bits=st.sampled_from([8, None]),
)
def test_built_networks(blocks, seed, residual_bits):
    torch.manual_seed(seed)
    model, inputs = randomize(Built(blocks), seed), torch.randn(2, 3, 6, 6)
    compressor = compress(model, inputs, bb.Spec(bits=(2, 4, 8), residual_bits=residual_bits), seed=seed)
    small = bb.deploy(compressor)
    cost = compressor.cost()
    assert (small.parameter_count, small.macs) == (cost.parameters, cost.macs)
    check_equal(compressor, small, inputs)


@settings(max_examples=5, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 60))
def test_networks_of_many_operations(seed):
    torch.manual_seed(seed)
    model, inputs = randomize(Random(seed), seed), torch.randn_like(IMAGES)
    compressor = compress(model, inputs, seed=seed, drop=0.4)
    small = bb.deploy(compressor)
    cost = compressor.cost()
    assert (small.parameter_count, small.macs) == (cost.parameters, cost.macs)
    check_equal(compressor, small, inputs)


class Called(nn.Module):
    """A network behind a call and a result of some form, with a slash in its name."""

    def __init__(self, network: nn.Module, form: str, returned: str) -> None:
        super().__init__()
        self.add_module("the/network", network)
        self.form, self.returned = form, returned

    def forward(self, x: Any, flag: bool = False, **more: Any) -> Any:
        data = x["image"] if self.form == "dict" else x[0][0] if self.form == "list" else x
        data = data + more["shift"] if "shift" in more else data
        y = self.get_submodule("the/network")(data[None] if self.form == "unbatched" else data)
        y = -y if flag else y
        results = {"tensor": y, "repeated": {"logits": y, "x": y}, "nested": ({"0": y}, [data, None])}
        return results[self.returned]


def inputs_of(form: str, image: Tensor) -> Any:
    """The example of a call."""
    return {
        "tensor": image,
        "twice": {"x": image, "shift": image},
        "dict": ({"image": image, "kind": "test"},),
        "list": {"flag": True, "x": [(image, 3)]},
        "unbatched": image[0],
    }[form]


@settings(max_examples=4, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    blocks=st.lists(st.tuples(st.sampled_from(KINDS), st.booleans()), min_size=1, max_size=2),
    form=st.sampled_from(["tensor", "twice", "dict", "list", "unbatched"]),
    returned=st.sampled_from(["tensor", "repeated", "nested"]),
    double=st.booleans(),
)
def test_networks_behind_any_call(blocks, form, returned, double, tmp_path):
    torch.manual_seed(0)
    model, image = Called(Built(blocks), form, returned), torch.randn(2, 3, 6, 6)
    model, image = (model.double(), image.double()) if double else (model, image)
    check_call(model, inputs_of(form, image), tmp_path)
