"""Constants derived from plan and weights, against numbers computed by hand."""

import ast
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import bayesbits as bb
from bayesbits.deploy.verification import derived_constants
from bayesbits.deploy.verification.derived_constants import derive_grids, derive_layers


def test_a_linear_layer(linear: bb.Compressor) -> None:
    plan = linear.plan()
    grids = derive_grids(linear, plan)
    grid = grids["0.input"]
    assert list(grids) == ["0.input"]
    assert (grid.bits, grid.signed, grid.low, grid.high, grid.beta) == (8, False, 0, 255, 1.0)
    assert grid.step == float(np.float32(1) / np.float32(255))
    constants = derive_layers(linear, plan, grids)["0"]
    assert constants.codes is not None
    assert constants.steps is not None
    assert constants.bias_codes is not None
    assert constants.codes.tolist() == [[4, -7], [2, 6]]  # 3.75, -7.5 (clipped inside the range), 1.875, 5.625
    assert constants.steps.tolist() == [float(np.float32(2) / np.float32(15))]
    assert constants.bias_codes.tolist() == [191, -574]  # 0.1 and -0.3 in steps of 2 / 15 / 255: 191.25, -573.75
    assert (constants.bits, constants.input_bits, constants.integer) == (4, 8, True)
    np.testing.assert_allclose(constants.weight, np.array([[4, -7], [2, 6]]) * 2 / 15, rtol=1e-7)
    assert constants.bias is not None
    # What sums of products are multiplied with, too: the product of both steps, which is not rounded to float32.
    assert constants.bias.tolist() == [code * (grid.step * float(constants.steps[0])) for code in (191, -574)]
    np.testing.assert_allclose(constants.bias, np.array([191, -574]) * 2 / 15 / 255, rtol=2e-7)


def test_an_asymmetric_input(linear: bb.Compressor) -> None:
    linear.attachment.quantizers["0.input"].set_range(1.3, alpha=-0.2)
    grid = derive_grids(linear, linear.plan())["0.input"]
    assert (grid.bits, grid.signed, grid.low, grid.high, grid.zero_point) == (8, True, -34, 221, 34)
    assert grid.step == float((np.float32(grid.beta) - np.float32(grid.alpha)) / np.float32(255))
    assert [grid.alpha, grid.beta] == pytest.approx([-0.2, 1.3], rel=1e-6)
    (deployed,) = bb.deploy(linear).integer.structure.grids
    assert deployed == grid


def test_a_layer_in_float(linear: bb.Compressor) -> None:
    plan = bb.Plan({"0.weight": 32, "0.input": 32})
    constants = derive_layers(linear, plan, derive_grids(linear, plan))["0"]
    assert (constants.codes, constants.bias_codes, constants.integer) == (None, None, False)
    assert constants.bias is not None
    np.testing.assert_allclose(constants.weight, [[0.5, -1.0], [0.25, 0.75]], rtol=2e-7)
    np.testing.assert_allclose(constants.bias, [0.1, -0.3], rtol=1e-7)


def test_a_batch_norm_is_folded_and_its_sign_is_the_codes() -> None:
    conv, norm = nn.Conv2d(1, 2, 1, bias=False), nn.BatchNorm2d(2, eps=0.0)
    with torch.no_grad():
        conv.weight.copy_(torch.tensor([1.0, 0.25]).reshape(2, 1, 1, 1))
        norm.running_var.copy_(torch.tensor([4.0, 0.25]))
        norm.running_mean.copy_(torch.tensor([1.0, 2.0]))
        norm.weight.copy_(torch.tensor([1.0, -1.0]))  # factors 0.5 and -2
        norm.bias.copy_(torch.tensor([0.5, 0.0]))
    inputs = torch.rand(2, 1, 2, 2)
    compressor = bb.attach(nn.Sequential(conv, norm).eval(), inputs, bb.Spec(bits=(2, 4, 8), prune=False))
    compressor.calibrate([inputs])
    for quantizer in compressor.attachment.quantizers.values():
        quantizer.set_range(1.0)
    plan = bb.Plan.uniform(compressor.topology, 4, 8)
    compressor.fix(plan)
    constants = derive_layers(compressor, plan, derive_grids(compressor, plan))["0"]
    assert constants.codes is not None
    assert constants.codes.flatten().tolist() == [4, -4]  # 0.5 and -0.5 in steps of 2 / 15: 3.75 and -3.75
    assert constants.bias_codes is not None
    assert constants.bias_codes.tolist() == [0, 7650]  # 0.5 - 1 * 0.5, and 0 + 2 * 2 in steps of 2 / 15 / 255


def test_channels_that_the_plan_removes_are_zero() -> None:
    torch.manual_seed(0)  # biases that are not rounded to 0
    inputs = torch.rand(2, 3)
    compressor = bb.attach(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).eval(), inputs)
    compressor.calibrate([inputs])
    (group,) = compressor.topology.removable_groups
    plan = bb.Plan.uniform(compressor.topology, 8, 8).without(compressor.topology, {group.channels[1]})
    compressor.fix(plan)
    constants = derive_layers(compressor, plan, derive_grids(compressor, plan))["0"]
    assert constants.codes is not None
    assert constants.bias is not None
    assert [bool(row.any()) for row in constants.codes] == [True, False, True, True]
    assert constants.bias[1] == 0.0
    assert constants.bias[0] != 0.0


@pytest.mark.parametrize(("inputs", "outputs", "groups"), [(4, 6, 2), (6, 4, 2), (3, 3, 3)])
def test_outputs_of_transposed_groups(inputs: int, outputs: int, groups: int) -> None:
    """The weights in row i and column j make output j of the group that input i belongs to."""
    model, x = nn.ConvTranspose2d(inputs, outputs, 1, groups=groups), torch.rand(2, inputs, 3, 3)
    compressor = bb.attach(model.eval(), x, bb.Spec(bits=(8,), per_channel_weights=True))
    compressor.calibrate([x])
    compressor.fix(bb.Plan.uniform(compressor.topology, 8, 8))
    plan, layer = compressor.plan(), compressor.topology.layers[0]
    derivation = derived_constants._LayerDerivation(
        compressor, plan, layer, derive_grids(compressor, plan), frozenset()
    )
    for output in range(outputs):
        marks = np.arange(outputs) == output
        only_input = torch.eye(inputs).reshape(inputs, inputs, 1, 1)  # which inputs this output reads
        reads = nn.functional.conv_transpose2d(only_input, torch.ones(layer.weight_shape), groups=groups)[:, output]
        spread = derivation._along(marks).reshape(inputs, -1)
        assert spread.shape == (inputs, outputs // groups)
        assert spread.any(1).tolist() == (reads.flatten() > 0).tolist()
        assert set(np.nonzero(spread)[1]) == {output % (outputs // groups)}
    constants = derivation.constants()
    deployed = bb.deploy(compressor).integer
    assert constants.codes is not None
    assert constants.codes.tolist() == deployed.codes(layer.name).tolist()


def test_the_derivation_imports_nothing_that_it_checks() -> None:
    imported = set()
    for node in ast.walk(ast.parse(Path(derived_constants.__file__).read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("bayesbits"):
            imported |= {f"{node.module}.{alias.name}" for alias in node.names}
    assert imported == {
        "bayesbits.compression.compressor.Compressor",
        "bayesbits.nn.weight_product.find_layer",  # where a layer is; nothing that is computed
        "bayesbits.records.integer_network.Grid",
        "bayesbits.records.plan.Plan",
        "bayesbits.records.topology.Layer",
        "bayesbits.utils.torch_private.BatchNorm",
    }
