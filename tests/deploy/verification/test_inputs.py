"""What a verification cannot run on is refused before it starts."""

import pytest
import torch

import bayesbits as bb
from tests.deploy.exported import Exported, exported


@pytest.fixture(scope="module")
def case() -> Exported:
    return exported(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 3)), torch.zeros(1, 12), count=4)


@pytest.mark.parametrize("inputs", [torch.zeros(0, 12), torch.zeros(4, 0), ()])
def test_on_no_inputs_nothing_is_proven(inputs, case):
    with pytest.raises(ValueError, match="given no inputs, and on none nothing is proven: pass examples"):
        bb.verify(case.compressor, case.small, "not read", inputs)


@pytest.mark.parametrize("strange", [torch.nan, torch.inf])
def test_inputs_that_are_not_finite_are_named(strange, case):
    inputs = torch.zeros(4, 12)
    inputs[1, 2] = strange
    with pytest.raises(ValueError, match="the input 'input' has 1 values that are not finite"):
        bb.verify(case.compressor, case.small, "not read", inputs)
