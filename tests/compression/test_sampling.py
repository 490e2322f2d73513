"""A sample is bounded, and falls in step with nothing."""

import pytest
import torch

from bayesbits.compression.sampling import SAMPLE, evenly_spaced, in_rows


@pytest.mark.parametrize("shape", [(1, 512 * 512), (8, 2**17), (1, 7), (100_000, 1)])
def test_evenly_spaced_values_are_few_and_out_of_step(shape):
    columns = torch.arange(shape[1]).expand(shape)
    sample = evenly_spaced(columns, SAMPLE)
    assert sample.shape[0] == shape[0]
    assert min(SAMPLE, shape[1]) / 3 < sample.shape[1] <= SAMPLE
    if shape[1] > 512:
        assert len((sample[0] % 512).unique()) == 512


def test_rows_are_those_of_axis_0_without_a_graph_in_the_precision_of_the_arithmetic():
    x = torch.arange(6.0, requires_grad=True).reshape(3, 2).to(torch.bfloat16)
    rows = in_rows(x, 3)
    assert rows.tolist() == [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]
    assert (rows.dtype, rows.requires_grad) == (torch.float32, False)
    assert in_rows(x.double(), 1).shape == (1, 6)
    assert in_rows(x.double(), 1).dtype == torch.float64


def test_short_rows_are_taken_whole_however_many_there_are():
    rows = torch.arange(4096.0).reshape(1024, 4)
    assert torch.equal(evenly_spaced(rows, 4), rows)
    assert evenly_spaced(rows[:2], 2).tolist() == [[0.0, 3.0], [4.0, 7.0]]  # a spacing of 3; 2 is in step
    assert evenly_spaced(rows, 1).shape == (1024, 1)
