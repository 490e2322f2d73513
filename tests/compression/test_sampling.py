"""A sample is bounded, and falls in step with nothing."""

import pytest
import torch

from bayesbits.compression.sampling import SAMPLE, evenly_spaced, in_rows


@pytest.mark.parametrize("shape", [(1, 512 * 512), (8, 2**16), (1, 7), (100_000, 1)])
def test_evenly_spaced_values_are_few_and_out_of_step(shape):
    columns = torch.arange(shape[1]).expand(shape)
    sample = evenly_spaced(columns, SAMPLE)
    assert sample.shape[0] == shape[0]
    assert sample.numel() <= max(SAMPLE + shape[0], shape[0])
    if shape[1] > 512:
        assert len((sample[0] % 512).unique()) == 512


def test_rows_are_those_of_axis_0_without_a_graph_in_the_precision_of_the_arithmetic():
    x = torch.arange(6.0, requires_grad=True).reshape(3, 2).to(torch.bfloat16)
    rows = in_rows(x, 3)
    assert rows.tolist() == [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]
    assert (rows.dtype, rows.requires_grad) == (torch.float32, False)
    assert in_rows(x.double(), 1).shape == (1, 6)
    assert in_rows(x.double(), 1).dtype == torch.float64


def test_a_small_matrix_is_taken_whole_and_every_row_has_a_value():
    rows = torch.arange(12.0).reshape(3, 4)
    assert evenly_spaced(rows, 12) is rows or torch.equal(evenly_spaced(rows, 12), rows)
    assert evenly_spaced(rows, 4).tolist() == [[0.0, 3.0], [4.0, 7.0], [8.0, 11.0]]  # a spacing of 3; 4 is in step
    assert evenly_spaced(rows, 1).shape == (3, 1)
