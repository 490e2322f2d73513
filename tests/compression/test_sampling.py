"""A sample is bounded, and falls in step with nothing."""

import pytest
import torch

from bayesbits.compression.sampling import SAMPLE, evenly_spaced


@pytest.mark.parametrize("shape", [(1, 512 * 512), (8, 2**16), (1, 7), (100_000, 1)])
def test_evenly_spaced_values_are_few_and_out_of_step(shape):
    columns = torch.arange(shape[1]).expand(shape)
    sample = evenly_spaced(columns, SAMPLE)
    assert sample.shape[0] == shape[0]
    assert sample.numel() <= max(SAMPLE + shape[0], shape[0])
    if shape[1] > 512:
        assert len((sample[0] % 512).unique()) == 512
