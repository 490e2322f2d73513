"""Groups of a weight: rows and back, values along them, and layers that quantize with a range for each group."""

import pytest
import torch
from torch import nn

import bayesbits as bb
from bayesbits.functional import quantize_to_codes
from bayesbits.nn.grouping import along_groups, group_count, in_groups, out_of_groups


def test_rows_and_back():
    weight = torch.arange(10.0).reshape(2, 5)
    rows = in_groups(weight, 2)
    assert rows.tolist() == [[0, 1], [2, 3], [4, 0], [5, 6], [7, 8], [9, 0]]
    assert torch.equal(out_of_groups(rows, 5), weight)
    assert torch.equal(in_groups(weight, 5), weight)
    assert [group_count(inputs, 16) for inputs in (16, 17, 1)] == [1, 2, 1]


def test_values_along_groups():
    values = torch.tensor([1.0, 2.0, 3.0, 4.0])
    assert along_groups(values, 3, 2).tolist() == [[1, 1, 2], [3, 3, 4]]


@pytest.fixture
def compressor() -> bb.Compressor:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(40, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3)).eval()
    with torch.no_grad():
        model[0].weight[:, :16] *= 50  # an outlier in one group does not widen the grid of the others
        model[1].weight.copy_(torch.tensor([1.0, -2.0, 0.5, 0.0, 3.0, 1e-3]))
    return bb.attach(model, torch.zeros(2, 40), bb.Spec(activations="float", prune=False, group_size=16))


def test_every_group_has_the_grid_of_its_own_range(compressor):
    layer, quantizer = compressor.model[0], compressor.attachment.quantizers["0.weight"]
    assert quantizer.range_shape == (6 * 3,)
    quantizer.fix(4)
    with torch.no_grad():
        factor = layer.fold_factor()
        folded = layer.weight * torch.where(factor == 0, 1.0, factor)[:, None]
        codes = layer.folded_codes()
        for start, stop in ((0, 16), (16, 32), (32, 40)):
            part = folded[:, start:stop]
            beta = quantizer.beta.reshape(6, 3)[:, start // 16]
            wanted = quantize_to_codes(part, beta[:, None], bits=4, signed=True)
            inside = factor != 0  # where the factor is 0, the weight is rounded as if it were 1
            assert torch.equal(codes[inside, start:stop], wanted[inside])
            assert codes[0, start:stop].abs().max() == 7  # each group reaches the end of its own grid
        steps = layer.along_ranges(layer.weight_steps())
        effective = layer.effective_weight() * factor[:, None]
        torch.testing.assert_close(effective, codes * steps, rtol=1e-5, atol=1e-7)


def test_gradients_reach_every_range(compressor):
    quantizer = compressor.attachment.quantizers["0.weight"]
    compressor.model(torch.randn(5, 40)).square().sum().backward()
    compressor.penalty().backward()
    assert quantizer.log_beta.grad.shape == (18,)
    assert compressor.model[0].weight.grad.abs().sum() > 0
