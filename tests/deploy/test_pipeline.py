"""Deploying: channels really gone, final integers, and the same codes as the simulation."""

import copy
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import bayesbits as bb
from bayesbits.cost.macs import layer_macs
from bayesbits.deploy.modules import ExactLayer
from bayesbits.zoo import models
from tests.deploy.comparison import call, input_codes, mixed_plan
from tests.graph.networks import OWN, Tied, randomize, transformer

SPEC = bb.Spec(bits=(2, 4, 8))

ZOO: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "lenet5": (lambda: models.create("lenet5"), (3, 1, 28, 28)),
    "vgg7": (lambda: models.create("vgg7"), (2, 3, 32, 32)),
    "resnet18": (lambda: models.create("resnet18", num_classes=10), (2, 3, 32, 32)),
    "resnet20": (lambda: models.create("resnet20"), (2, 3, 32, 32)),
    "mobilenetv2": (lambda: models.create("mobilenetv2", num_classes=10, width=0.25), (2, 3, 32, 32)),
}
TRANSFORMERS = ("vit", "convnext", "bert", "llama")


def make(name: str) -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    if name in ZOO:
        create, shape = ZOO[name]
        return randomize(create()), torch.randn(shape)
    if name in TRANSFORMERS:
        model, inputs = transformer(name)
        return randomize(model), {
            key: torch.cat([x, x.flip(-1)]) if x.is_floating_point() else x for key, x in inputs.items()
        }
    create, inputs = OWN[name]
    fresh = tuple(torch.randn_like(x) for x in inputs) if isinstance(inputs, tuple) else torch.randn_like(inputs)
    return randomize(create()), fresh


def compress(model: nn.Module, inputs: Any, spec: bb.Spec = SPEC, **options: Any) -> bb.Compressor:
    """A compressor with ranges half as wide as the data, so that both ends saturate, and a plan of mixed widths."""
    compressor = bb.attach(model.eval(), inputs, spec)
    compressor.calibrate([inputs])
    for name, quantizer in compressor.attachment.quantizers.items():
        if name not in compressor.topology.weight_tensors:
            quantizer.set_range(quantizer.beta.detach() * 0.5)
    compressor.fix(mixed_plan(compressor.topology, operands=spec.residual_bits is not None, **options))
    return compressor


def check_equal(compressor: bb.Compressor, small: bb.DeployedNetwork, inputs: Any) -> None:
    """Simulation and deployed network read the same codes, but for a few at rounding ties."""
    for name, (simulated, deployed) in input_codes(compressor, small, inputs).items():
        assert simulated.shape == deployed.shape, name
        assert (simulated != deployed).float().mean() < 1e-3, name
    expected, actual = call(compressor.model, inputs), call(small, inputs)
    assert (actual - expected).norm() <= 1e-3 * expected.norm()


@cache
def deployed(name: str) -> tuple[bb.Compressor, bb.DeployedNetwork, Any]:
    """A compressor, its deployed network and inputs; shared by tests that change none of them."""
    model, inputs = make(name)
    compressor = compress(model, inputs)
    return compressor, bb.deploy(compressor), inputs


@pytest.mark.parametrize("name", [*ZOO, *OWN, *TRANSFORMERS])
def test_mixed_bits_and_dropped_channels(name):
    compressor, small, inputs = deployed(name)
    cost = compressor.cost()
    assert small.parameter_count == cost.parameters
    assert small.macs == cost.macs
    assert all(layer.arithmetic == "integer" for layer in small.integer.layers)
    check_equal(compressor, small, inputs)


@pytest.mark.parametrize("name", ["resnet18", "mobilenetv2"])
def test_a_network_without_a_third_of_its_channels_is_really_smaller(name):
    compressor, small, inputs = deployed(name)
    held = [module for module in small.modules() if isinstance(module, ExactLayer)]
    elements = sum(module.codes.numel() + module.bias.numel() for module in held)
    whole = sum(p.numel() for module, p in compressor.model.named_parameters() if "bayesbits" not in module)
    assert elements == small.parameter_count < 0.65 * whole
    counted = []

    def count(module: Any, args: Any, output: Tensor) -> None:
        layer = module.layer
        counted.append(layer_macs(layer.kind, layer.weight_shape, args[0].shape, output.shape))

    handles = [module.register_forward_hook(count) for module in held]
    call(small, inputs)
    for handle in handles:
        handle.remove()
    assert sum(counted) == small.macs < 0.65 * compressor.topology.macs


@pytest.mark.parametrize("name", ["residual", "depthwise", "concatenation", "shuffled", "padded shortcut", "vit"])
def test_pruned_and_masked_are_the_same_in_float(name):
    model, inputs = make(name)
    compressor = bb.attach(model.eval(), inputs, bb.Spec(bits=(32,), input_bits=32, residual_bits=None))
    compressor.calibrate([inputs])
    kept = mixed_plan(compressor.topology).kept
    compressor.fix(bb.Plan(bb.Plan.uniform(compressor.topology, 32, 32, 32).bits, kept))
    small = bb.deploy(compressor)
    assert small.integer.structure.removed
    assert small.parameter_count == compressor.cost().parameters
    expected, actual = call(compressor.model, inputs), call(small, inputs)
    assert ((actual - expected).norm() / expected.norm()).item() < 1e-5


def test_the_compressor_is_not_changed():
    model, inputs = make("residual")
    compressor = compress(model, inputs)
    state, before = copy.deepcopy(model.state_dict()), call(model, inputs)
    small = bb.deploy(compressor)
    assert not any("gates" in name or "bayesbits" in name for name in small.state_dict())
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert torch.equal(call(model, inputs), before)
    assert [group["name"] for group in compressor.parameter_groups()] == ["weights", "ranges"]
    with torch.no_grad():
        next(model.parameters()).zero_()
    assert not torch.equal(call(small, inputs), call(bb.deploy(compressor), inputs))


def test_every_batch_size():
    model, inputs = make("residual")
    small = bb.deploy(compress(model, inputs[:1]))
    assert small.integer.structure.dynamic_batch
    together = call(small, inputs)
    assert torch.equal(together, torch.cat([call(small, image[None]) for image in inputs]))


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("width", [3, 5, 6])
def test_other_widths_and_per_channel_steps(width, per_channel):
    model, inputs = make("residual")
    spec = bb.Spec(bits=(width, 8), per_channel_weights=per_channel)
    compressor = compress(model, inputs, spec, bits=(width,))
    small = bb.deploy(compressor)
    for layer in small.integer.layers:
        assert small.integer.steps(layer.name).numel() == (layer.weight_shape[0] if per_channel else 1)
    check_equal(compressor, small, inputs)


@pytest.mark.parametrize("width", [16, 20, 32])
def test_wide_tensors_stay_in_float_and_are_listed(width):
    model, inputs = make("residual")
    compressor = compress(model, inputs, bb.Spec(bits=(8, width)), bits=(width,))
    small = bb.deploy(compressor)
    assert all(layer.arithmetic == "float" for layer in small.integer.layers)
    assert any(f"its weight has {width} bits" in note for note in small.integer.notes)
    expected, actual = call(compressor.model, inputs), call(small, inputs)
    assert ((actual - expected).norm() / expected.norm()).item() < 1e-4


def test_codes_are_those_of_the_simulation():
    compressor, small, _ = deployed("depthwise")
    removed = set(small.integer.structure.removed)
    assert removed
    for layer in compressor.topology.layers:
        module = compressor.model.get_submodule(layer.name)
        codes = module.parts.weight.codes(module.folded_weight())
        codes = codes[[index for index, channel in enumerate(layer.out_channels) if channel not in removed]]
        if not layer.depthwise:
            codes = codes[:, [index for index, channel in enumerate(layer.in_channels) if channel not in removed]]
        assert torch.equal(small.integer.codes(layer.name).int(), codes)


class FixedView(nn.Module):
    """Sizes written down as numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.second = nn.Conv2d(8, 6, 1)
        self.head = nn.Linear(6 * 16, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.first(x)).view(-1, 8, 64).reshape(-1, 8, 8, 8)
        return self.head(F.max_pool2d(self.second(x), 2).view(-1, 96))


class Unpooling(nn.Module):
    """A max-pool whose indices say where the values of another map go."""

    def __init__(self, functional: bool) -> None:
        super().__init__()
        self.first, self.norm, self.inner = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Conv2d(8, 8, 1)
        self.pool, self.last = nn.MaxPool2d(2, return_indices=True), nn.Conv2d(8, 2, 3, padding=1)
        self.relu, self.functional = nn.ReLU(), functional

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.first(x))
        x, indices = self.pool(F.relu(x) if self.functional else self.relu(x))
        return self.last(F.max_unpool2d(F.relu(self.inner(x)), indices, 2))


@pytest.mark.parametrize(("functional", "residual_bits"), [(True, 8), (False, 8), (False, None)])
def test_indices_of_a_max_pool_are_those_of_the_simulation(functional, residual_bits):
    """At 2 bits many sums are equal, and in float their last bits would decide which is the largest."""
    torch.manual_seed(0)
    model, inputs = Unpooling(functional).eval(), torch.randn(4, 3, 16, 16)
    compressor = bb.attach(model, inputs, bb.Spec(bits=(2, 8), input_bits=2, residual_bits=residual_bits))
    compressor.calibrate([inputs])
    compressor.fix(bb.Plan.uniform(compressor.topology, 2, 2, input_bits=2, residual_bits=residual_bits))
    small = bb.deploy(compressor)
    expected, actual = call(model, inputs), call(small, inputs)
    assert (actual - expected).norm() <= 1e-5 * expected.norm()
    assert compressor.topology.pooled_tensors == {"norm.output" if functional else "relu.output"}
    plan = compressor.plan()
    compressor.fix(bb.Plan({name: width for name, width in plan.bits.items() if not name.endswith("output")}))
    assert "indices of a max-pool" in str(bb.deploy(compressor))


def test_sizes_in_the_users_code_are_corrected():
    model, inputs = randomize(FixedView()), torch.randn(3, 3, 8, 8)
    compressor = compress(model, inputs)
    small = bb.deploy(compressor)
    assert small.parameter_count == compressor.cost().parameters < sum(p.numel() for p in model.parameters())
    check_equal(compressor, small, inputs)


def test_tied_weights():
    model, inputs = randomize(Tied()), torch.randn(3, 4)
    compressor = compress(model, inputs)
    small = bb.deploy(compressor)
    assert small.parameter_count == compressor.cost().parameters
    check_equal(compressor, small, inputs)


def test_channels_that_only_some_producers_drop_are_zeros_there():
    model, inputs = make("residual")
    compressor = bb.attach(model.eval(), inputs, SPEC)
    compressor.calibrate([inputs])
    plan = bb.Plan(mixed_plan(compressor.topology).bits, {"outer": (0, 2, 5)})
    compressor.fix(plan)
    small = bb.deploy(compressor)
    assert small.integer.structure.removed == ()
    assert not small.integer.codes("outer")[[1, 3, 4]].any()
    assert not small.integer.bias("outer")[[1, 3, 4]].any()
    assert small.integer.codes("outer")[[0, 2, 5]].any()
    check_equal(compressor, small, inputs)


def test_a_branch_that_vanished_goes():
    model, inputs = make("residual")
    compressor = bb.attach(model.eval(), inputs, SPEC)
    compressor.calibrate([inputs])
    bits = mixed_plan(compressor.topology).bits | {"outer.weight": 0}
    compressor.fix(bb.Plan(bits, {"outer": ()}))
    small = bb.deploy(compressor)
    assert [layer.name for layer in small.integer.layers] == ["stem", "head"]
    check_equal(compressor, small, inputs)


def test_rounding_up_keeps_the_function():
    compressor, exact, inputs = deployed("lenet5")
    rounded = bb.deploy(compressor, channel_multiple=8)
    channels = [[layer.weight_shape[0] for layer in small.integer.layers] for small in (exact, rounded)]
    assert channels == [[23, 45, 359, 10], [24, 48, 360, 10]]
    assert torch.equal(call(exact, inputs), call(rounded, inputs))
    with pytest.raises(ValueError, match="channel_multiple is 0"):
        bb.deploy(compressor, channel_multiple=0)


def test_what_cannot_be_deployed_is_said():
    model, inputs = make("residual")
    compressor = bb.attach(model, inputs, SPEC)
    with pytest.raises(ValueError, match="calibrate"):
        bb.deploy(compressor)
    _, small, inputs = deployed("residual")
    with pytest.raises(TypeError, match="takes the inputs x"):
        small(inputs, inputs)


def test_one_relu_becomes_a_bound_and_max_pool_works_on_codes():
    _, small, _ = deployed("lenet5")
    operations = {str(node.target) for node in small.program.graph.nodes if node.op == "call_function"}
    assert not any("relu" in name for name in operations)
    assert any("max_pool2d" in name for name in operations)
    assert [layer.output for layer in small.integer.layers] == [
        "features.3.input", "classifier.1.input", "classifier.3.input", None
    ]  # fmt: skip


def test_the_table_names_every_layer():
    _, small, _ = deployed("lenet5")
    assert all(layer.name in str(small) for layer in small.integer.layers)
    assert f"{small.parameter_count:,} parameters" in str(small)
