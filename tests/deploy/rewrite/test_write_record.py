"""The record: final tensors, MACs of the channels that remain, and notes about what stays in float."""

import torch
from torch import nn

import bayesbits as bb
from tests.deploy.networks import deployed


def small_network(**kept: tuple[int, ...]) -> bb.DeployedNetwork:
    """A convolution to four channels of which some are kept, and a linear layer behind it, at 4 and 8 bits."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 4, 3))
    inputs = torch.linspace(-1, 1, 3 * 2 * 16).reshape(3, 2, 4, 4)
    compressor = bb.attach(model.eval(), inputs, bb.Spec(bits=(4, 8)))
    compressor.calibrate([inputs])
    compressor.fix(bb.Plan(bb.Plan.uniform(compressor.topology, 4, 4).bits, kept))
    return bb.deploy(compressor)


def test_macs_and_shapes_are_those_of_the_channels_that_remain():
    record = small_network(**{"0": (0, 1, 3)}).integer
    convolution, linear = record.layers
    assert (convolution.weight_shape, linear.weight_shape) == ((3, 2, 3, 3), (3, 12))
    assert convolution.macs == 3 * 4 * (3 * 2 * 9)  # batch, positions, weights
    assert linear.macs == 3 * 3 * 12
    assert record.structure.removed == (4,)  # the third class behind the two of the input
    assert record.structure.input_shapes == ((3, 2, 4, 4),)
    assert record.structure.input_types == ("float32",)
    assert record.structure.notes == ()


def test_tensors_are_codes_steps_and_integer_biases():
    tensors = small_network().integer.tensors
    assert {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()} == {
        "0.codes": (torch.int8, (4, 2, 3, 3)), "0.steps": (torch.float32, (1,)), "0.bias": (torch.int32, (4,)),
        "3.codes": (torch.int8, (3, 16)), "3.steps": (torch.float32, (1,)), "3.bias": (torch.int32, (3,)),
    }  # fmt: skip


def test_a_depthwise_layer_has_as_many_groups_as_channels_remain():
    _, small, _ = deployed("depthwise")
    layer = small.integer.layer("filter")
    assert layer.groups == layer.weight_shape[0] < 8


def test_float_tensors_that_nothing_reads_are_removed():
    _, small, _ = deployed("shuffled")
    held = {name for name in small.program.state_dict() if name.startswith("floats.")}
    read = {str(node.target) for node in small.program.graph.nodes if node.op == "get_attr"}
    assert held == read
    assert all("positions" in name for name in held)  # weights, biases and statistics of the float network are gone
