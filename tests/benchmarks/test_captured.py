"""What torch.compile captures of a step is the same in every run, and another step has another digest."""

from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from bayesbits.methods.lsq import LsqQuantizer
from benchmarks.captured import graphs_of, row_of

pytestmark = pytest.mark.check
STEP = ("fake-quantization", "lenet5", 2, 28)


def test_a_row_is_the_same_in_every_run_and_changes_with_any_operation():
    one = row_of(*STEP)
    assert one["operations"] > row_of("float", *STEP[1:])["operations"] > 10
    quantize = LsqQuantizer.quantize

    def doubled(self: LsqQuantizer, x: Tensor) -> Tensor:
        return 2 * quantize(self, x)

    with patch.object(LsqQuantizer, "quantize", doubled):
        other = row_of(*STEP)
    assert other["digest"] != one["digest"]
    assert row_of(*STEP) == one


def test_a_step_that_is_not_one_graph_forward_and_one_backward_is_an_error():
    quantize = LsqQuantizer.quantize

    def broken(self: LsqQuantizer, x: Tensor) -> Tensor:
        torch._dynamo.graph_break()
        return quantize(self, x)

    with patch.object(LsqQuantizer, "quantize", broken), pytest.raises(RuntimeError, match="graphs, and not one"):
        graphs_of(*STEP)
