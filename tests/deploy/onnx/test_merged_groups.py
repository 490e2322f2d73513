"""Groups of a few channels are computed together, with the same integers."""

from dataclasses import replace

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from torch import nn

import bayesbits as bb
from bayesbits.deploy.onnx.merged_groups import ALL_CHANNELS, MERGED_CHANNELS, merged_groups
from tests.deploy.onnx.test_layer_nodes import LAYER, POINT


@pytest.mark.parametrize(
    ("channels", "groups", "outputs", "merged"),
    [
        (128, 32, 4, 8),  # of 4, as in ResNeXt, to 32
        (64, 16, 4, 16),  # few channels in all: one group
        (96, 4, 24, 1),
        (240, 10, 24, 1),
        (120, 15, 8, 3),  # 4 would fit and does not divide 15
        (1024, 32, 32, 1),
        (128, 128, 1, 1),  # depthwise
        (128, 128, 2, 32),
        (128, 1, 128, 1),
    ],
)
def test_neighboring_groups_are_merged_up_to_32_channels(channels, groups, outputs, merged):
    layer = replace(LAYER, **POINT | {"weight_shape": (groups * outputs, channels // groups, 3, 3), "groups": groups})
    assert merged_groups(layer) == merged
    assert merged == 1 or merged * channels // groups <= MERGED_CHANNELS or channels <= ALL_CHANNELS
    assert merged_groups(replace(layer, kind="conv_transpose")) == 1


class Grouped(nn.Module):
    """Groups of 4 channels to 4, and of 2 to 3."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 72, 3, padding=1)
        self.four = nn.Conv2d(72, 72, 3, padding=1, groups=18)
        self.wide = nn.Conv2d(72, 108, 3, padding=2, dilation=2, groups=36, bias=False)
        self.head = nn.Linear(108, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.four(self.stem(x).relu()).relu()
        return self.head(self.wide(x).relu().mean((2, 3)))


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    torch.manual_seed(0)
    inputs = torch.randn(8, 3, 6, 6)
    compressor = bb.attach(Grouped().eval(), inputs, bb.Spec.for_backend("onnxruntime"))
    compressor.calibrate([inputs])
    plan = bb.Plan.uniform(compressor.topology, 8, 8)
    compressor.fix(bb.Plan(plan.bits | {"four.weight": 4}))
    return compressor, bb.deploy(compressor), inputs, tmp_path_factory.mktemp("grouped")


@pytest.mark.parametrize("form", ["fast", "compact"])
def test_a_network_with_groups_is_equal(case, form):
    compressor, small, inputs, folder = case
    bb.export_onnx(small, inputs, folder / f"{form}.onnx", form=form)
    found = bb.verify(compressor, small, folder / f"{form}.onnx", inputs)
    assert {"stem", "four", "wide"} <= set(found.integer_layers)
    assert all(tensor.differing == 0 for tensor in found.runtime_tensors if tensor.exact)
    nodes = onnx.load(str(folder / f"{form}.onnx")).graph.node
    groups = [attribute.i for node in nodes for attribute in node.attribute if attribute.name == "group"]
    assert groups == [1, 3, 3]


def test_weights_between_groups_are_found_by_verifying(case):
    compressor, small, inputs, folder = case
    path = folder / "wrong.onnx"
    bb.export_onnx(small, inputs, path)
    model = onnx.load(str(path))
    (own,) = [one for one in model.graph.initializer if one.name == "four.weight.own"]
    places = numpy_helper.to_array(own).copy()
    places[0, 0, 0, 1] = True  # the second group is added to the first one's outputs
    own.CopyFrom(numpy_helper.from_array(places, own.name))
    onnx.save(model, str(path))
    with pytest.raises(bb.VerificationError, match="four"):
        bb.verify(compressor, small, path, inputs)


def test_the_file_holds_the_weight_of_the_groups_alone(case):
    _, small, inputs, folder = case
    bb.export_onnx(small, inputs, folder / "file.onnx")
    model = onnx.load(str(folder / "file.onnx"))
    (weight,) = [one for one in model.graph.initializer if one.name == "four.weight"]
    assert np.array_equal(numpy_helper.to_array(weight), small.integer.codes("four").numpy())
