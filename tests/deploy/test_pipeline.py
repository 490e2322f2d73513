"""Deploying: channels are gone, integers are final, and the codes are those of the simulation."""

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import bayesbits as bb
from bayesbits.cost.macs import layer_macs
from bayesbits.deploy import rewrite
from bayesbits.deploy.decision import stored_decision
from bayesbits.deploy.graph_json import graph_to_data
from bayesbits.deploy.modules.layers import ExactLayer
from bayesbits.deploy.pipeline import PASSES, rebuild, run_passes
from bayesbits.deploy.rewrite.export_float_network import export_float_network
from tests.deploy.comparison import call, check_equal
from tests.deploy.networks import TRANSFORMERS, ZOO, compress, deployed, make
from tests.graph.networks import OWN, Tied, randomize


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


def test_tied_weights():
    model, inputs = randomize(Tied()), torch.randn(3, 4)
    compressor = compress(model, inputs)
    small = bb.deploy(compressor)
    assert small.parameter_count == compressor.cost().parameters
    check_equal(compressor, small, inputs)


def test_every_pass_lies_in_the_file_of_its_name_and_imports_no_other_pass():
    folder = Path(rewrite.__file__).parent
    names = [export_float_network.__name__, *(run_pass.__name__ for run_pass in PASSES)]
    shared = {"program", "index_masks", "size_arguments"}
    assert {path.stem for path in folder.glob("*.py")} == {*names, *shared, "__init__"}
    for path in folder.glob("*.py"):
        imported = set(re.findall(r"from bayesbits\.deploy\.rewrite\.(\w+) import", path.read_text()))
        assert imported <= shared, path.name


@pytest.mark.parametrize("name", ["shuffled", "residual"])
def test_rebuilding_writes_the_stored_record_again(name):
    _, small, _ = deployed(name)
    float_model = make(name)[0]
    program = run_passes(stored_decision(float_model, small.integer))
    assert program.record is not None
    assert program.record.structure == small.integer.structure
    assert all(torch.equal(tensor, small.integer.tensors[key]) for key, tensor in program.record.tensors.items())
    assert graph_to_data(rebuild(float_model, small.integer)) == graph_to_data(small.program.graph)
