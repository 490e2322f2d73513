"""The tensors that stay in float."""

import torch

from bayesbits.deploy.modules.float_tensors import FloatTensors


def test_float_tensors_are_copied_once_and_removed_when_nothing_reads_them():
    floats, scale, count = FloatTensors(), torch.tensor([1.0, 2.0]), torch.tensor([3])
    assert floats.add("norm.scale", scale, parameter=True) == "floats./norm/scale"
    assert floats.add("norm.count", count, parameter=True) == "floats./norm/count"
    scale.zero_()
    assert floats.add("norm.scale", scale, parameter=True) == "floats./norm/scale"
    assert {name: value.tolist() for name, value in floats.named_parameters()} == {"/norm/scale": [1.0, 2.0]}
    assert not any(parameter.requires_grad for parameter in floats.parameters())
    assert {name: value.tolist() for name, value in floats.named_buffers()} == {"/norm/count": [3]}
    assert floats.add_positions(torch.tensor([2, 0])) == "floats./positions/1"
    assert floats.add_positions(torch.tensor([2, 0])) == "floats./positions/2"
    floats.remove_unread({"floats./positions/2", "floats./norm/scale"})
    assert list(floats.state_dict()) == ["/norm/scale", "/positions/2"]
