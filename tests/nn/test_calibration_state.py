"""Nothing that is attached runs with unknown ranges."""

import copy

import pytest
import torch

import bayesbits as bb
from tests.nn.captured import Captured


def test_a_part_of_the_network_does_not_run_with_unknown_ranges():
    model, x = Captured().eval(), torch.randn(4, 3, 6, 6)
    compressor = bb.attach(model, x)
    for part, inputs in ((model.stem, x), (model.block.way, torch.randn(4, 4, 6, 6)), (model.block, x[:, :1])):
        with pytest.raises(RuntimeError, match=r"call compressor\.calibrate"):
            part(inputs)
    with pytest.raises(RuntimeError, match=r"call compressor\.calibrate"):
        torch.compile(model.stem, backend="eager", fullgraph=True)(x)
    compressor.calibrate([x])
    torch.compile(model.stem, backend="eager", fullgraph=True)(x)
    copied = copy.deepcopy(model)
    copied.stem(x)
    compressor.attachment.calibrated = False
    copied.stem(x)
    with pytest.raises(RuntimeError, match=r"call compressor\.calibrate"):
        model.stem(x)
