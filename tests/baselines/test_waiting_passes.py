"""Passes that wait: values as in an ordinary pass, every layer once, and nothing left behind afterwards."""

import threading

import pytest
import torch
from torch import Tensor, nn

from bayesbits.baselines.waiting_passes import waiting_passes


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 2)
        self.runs = 0

    def forward(self, x: Tensor) -> Tensor:
        self.runs += 1
        x = torch.relu_(self.first(x))
        if float(x.sum()) > 1e3:
            return x
        return self.third(self.second(input=x) + x)


def prepared() -> tuple[Branching, list[Tensor]]:
    torch.manual_seed(0)
    return Branching().eval(), list(torch.randn(3, 4, 3))


def test_every_pass_runs_once_and_sees_what_an_ordinary_one_does():
    model, batches = prepared()
    with waiting_passes(model, batches, ["first", "second", "third"]) as passes:
        entered = passes.to("first")
        assert all(torch.equal(arguments[0], x) for (arguments, _), x in zip(entered, batches, strict=True))
        left = passes.to("second", leave=True)
        assert model.runs == len(batches)
        with torch.no_grad():
            for output, x in zip(left, batches, strict=True):
                torch.testing.assert_close(output, model.second(torch.relu(model.first(x))))
    assert model.runs == len(batches)


def test_a_change_of_a_module_in_front_of_them_is_seen_by_all():
    model, batches = prepared()
    with waiting_passes(model, batches, ["second", "third"]) as passes:
        passes.to("second")
        with torch.no_grad():
            model.second.weight.zero_()
            model.second.bias.fill_(2.0)
        left = passes.to("second", leave=True)
    assert all(bool((output == 2.0).all()) for output in left)


def test_a_batch_that_never_gets_there_has_no_value():
    model, batches = prepared()
    with waiting_passes(model, [batches[0], 1e6 * batches[1]], ["second", "third"]) as passes:
        values = passes.to("second")
        assert values[0] is not None
        assert values[1] is None
        assert passes.to("third")[1] is None


def test_modules_that_were_passed_are_not_waited_for_again():
    model, batches = prepared()
    with waiting_passes(model, batches, ["first", "second", "third"]) as passes:
        passes.to("third")
        assert passes.to("first") == [None] * 3
        assert passes.to("third")[0] is not None


def test_errors_of_the_network_arrive_and_all_threads_end():
    model, batches = prepared()
    before = threading.active_count()
    with (
        pytest.raises(RuntimeError, match="shapes cannot be multiplied"),
        waiting_passes(model, [batches[0], torch.randn(4, 5)], ["third"]) as passes,
    ):
        passes.to("third")
    assert threading.active_count() == before
    hooks = [module for module in model.modules() if module._forward_hooks or module._forward_pre_hooks]
    assert not hooks
    with waiting_passes(model, batches, ["third"]):
        pass
    assert threading.active_count() == before
    assert model.runs == 2


def test_calls_outside_of_the_passes_do_not_wait():
    model, batches = prepared()
    with waiting_passes(model, batches, ["first"]) as passes:
        passes.to("first")
        with torch.no_grad():
            assert model(batches[0]).shape == (4, 2)


def test_autocast_is_that_of_the_caller():
    model, batches = prepared()
    with torch.autocast("cpu", dtype=torch.bfloat16), waiting_passes(model, batches, ["second"]) as passes:
        (_, keywords), *_ = passes.to("second")
        assert keywords["input"].dtype == torch.bfloat16
    with waiting_passes(model, batches, ["second"]) as passes:
        assert passes.to("second")[0][1]["input"].dtype == torch.float32
