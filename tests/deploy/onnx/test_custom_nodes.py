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
from bayesbits.deploy.onnx.export import export_float_onnx
from tests.deploy.exported import exported
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


class NothingSqueezed(nn.Module):
    """A dimension of more than one is squeezed, which changes nothing in torch, and is an error in ONNX."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 6)

    def forward(self, x):
        return self.layer(x).sigmoid().squeeze(1)


def test_a_squeeze_of_more_than_one_is_exported_in_all_forms(tmp_path):
    network = exported(NothingSqueezed(), torch.randn(2, 3, 4), count=8)
    for form in ("fast", "qdq"):
        network.verify(network.write(tmp_path / "network.onnx", form))


class Masked(nn.Module):
    """What a mask of integers hides is zero."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x, hidden):
        return self.layer(x) * (1.0 - hidden)


def test_a_number_minus_integers_is_exported_in_all_forms(tmp_path):
    inputs = (torch.randn(2, 4), torch.tensor([[1, 0, 0, 1], [0, 0, 1, 0]]))
    compressor = bb.attach(randomize(Masked(), 0).eval(), inputs, bb.Spec(prune=False))
    compressor.calibrate([inputs])
    compressor.fix(bb.Plan.uniform(compressor.topology, 8, 8))
    small = bb.deploy(compressor)
    for form in ("fast", "qdq"):
        bb.export_onnx(small, inputs, tmp_path / "small.onnx", form=form)
        bb.verify(compressor, small, tmp_path / "small.onnx", inputs)
    compressor.detach()
    export_float_onnx(compressor.model, inputs, tmp_path / "float.onnx")


def test_the_exporter_is_quiet_and_then_as_loud_as_before():
    logger = logging.getLogger("torch.onnx")
    before = logger.level
    with quiet_exporter():
        assert logger.level == logging.ERROR
        warnings.warn("not shown", stacklevel=1)
    assert logger.level == before
