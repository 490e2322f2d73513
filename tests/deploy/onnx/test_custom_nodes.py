"""The graph that torch exports: one custom node for each layer and quantizer, codes as uint8 between them."""

import logging
import warnings
from types import SimpleNamespace

import pytest
import torch
from onnx import TensorProto, numpy_helper
from torch import nn

import bayesbits as bb
from bayesbits.deploy.onnx.custom_nodes import DOMAIN, OPSET, export_with_custom_nodes, output_shape, quiet_exporter
from tests.graph.networks import randomize


def test_layers_and_quantizers_are_one_node_each_and_padding_is_the_zero_point():
    layers = (nn.Conv2d(2, 3, 3), nn.ZeroPad2d(1), nn.Conv2d(3, 2, 3), nn.Sigmoid())
    inputs = torch.randn(1, 2, 6, 6)
    compressor = bb.attach(randomize(nn.Sequential(*layers), 0).eval(), inputs, bb.Spec(prune=False))
    compressor.calibrate([inputs])
    compressor.fix(bb.Plan.uniform(compressor.topology, 8, 8))
    small = bb.deploy(compressor)
    model = export_with_custom_nodes(small.program, small.integer, (inputs,), OPSET)
    found = {
        (node.op_type, next(a.s.decode() for a in node.attribute if a.name == "of"))
        for node in model.graph.node
        if node.domain == DOMAIN
    }
    assert found == {("Quantize", "0.input"), ("Layer", "0"), ("Layer", "2")}
    zero_point = small.integer.grid("2.input").zero_point
    assert zero_point == -small.integer.grid("2.input").low != 128
    pad = next(node for node in model.graph.node if node.op_type == "Pad")
    padding = next(tensor for tensor in model.graph.initializer if tensor.name == pad.input[2])
    assert padding.data_type == TensorProto.UINT8
    assert numpy_helper.to_array(padding).tolist() == zero_point
    assert model.graph.input[0].type.tensor_type.shape.dim[0].dim_param, "any batch size"


@pytest.mark.parametrize(
    "module",
    [
        nn.Linear(4, 7),
        nn.Conv1d(4, 6, 3, stride=2, padding=1, dilation=2),
        nn.Conv2d(4, 6, (2, 3), stride=(1, 2), padding=(0, 2), groups=2),
        nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1, dilation=2, groups=2),
    ],
)
def test_the_output_shape_of_a_layer_is_torchs(module):
    x = torch.zeros(3, 5, 4) if isinstance(module, nn.Linear) else torch.zeros(3, 4, *[11] * (module.weight.dim() - 2))
    kind = {"Linear": "linear", "ConvTranspose2d": "conv_transpose"}.get(type(module).__name__, "conv")
    names = ("stride", "padding", "dilation", "output_padding", "groups")
    options = {name: getattr(module, name, None) for name in names}
    layer = SimpleNamespace(kind=kind, weight_shape=tuple(module.weight.shape), **options)
    assert output_shape(layer, x) == list(module(x).shape)


def test_the_exporter_is_quiet_and_then_as_loud_as_before():
    logger = logging.getLogger("torch.onnx")
    before = logger.level
    with quiet_exporter():
        assert logger.level == logging.ERROR
        warnings.warn("not shown", stacklevel=1)
    assert logger.level == before
