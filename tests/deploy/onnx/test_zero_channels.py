"""How many channels of zeros a convolution is given."""

from dataclasses import replace

import pytest

from bayesbits.deploy.onnx.zero_channels import missing_channels, pads_depthwise
from tests.deploy.onnx.test_layer_nodes import LAYER, POINT

LARGE, SMALL = [None, 0, 12, 12], [None, 0, 12, 11]


@pytest.mark.parametrize(("channels", "missing"), [(1, 0), (2, 2), (3, 1), (4, 0), (5, 0)])
def test_two_and_three_channels_become_four(channels, missing):
    layer = replace(LAYER, **POINT | {"weight_shape": (8, channels, 3, 3)})
    assert missing_channels(layer, SMALL) == missing
    assert missing_channels(replace(layer, groups=2), SMALL) == 0
    assert missing_channels(replace(layer, kind="linear", weight_shape=(8, channels)), [None, 8]) == 0


@pytest.mark.parametrize(
    ("channels", "missing"), [(8, 0), (9, 7), (16, 0), (20, 12), (24, 0), (40, 0), (56, 8), (64, 0), (72, 8)]
)
def test_depthwise_convolutions_of_large_images_have_whole_blocks(channels, missing):
    layer = replace(LAYER, **POINT | {"weight_shape": (channels, 1, 3, 3), "groups": channels})
    assert pads_depthwise(layer, LARGE) == (missing > 0)
    assert missing_channels(layer, LARGE) == missing
    assert missing_channels(layer, SMALL) == 0
    assert missing_channels(replace(layer, output=None), LARGE) == 0
