"""Forward passes that advance together: where they stop, what is computed again, and how they end."""

import threading

import pytest
import torch
from torch import nn

from bayesbits.baselines.simultaneous_passes import PassesError, advance_together

BATCHES = [torch.tensor([[1.0]]), torch.tensor([[2.0]]), torch.tensor([[-3.0]])]


class Collected:
    """What is seen at a module: outputs, and outputs that were computed again."""

    def __init__(self):
        self.first, self.again = [], []

    def __call__(self, output, again):
        (self.again if again else self.first).append(output.item())


def chain() -> nn.Sequential:
    model = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1), nn.Linear(1, 1))
    for layer in model:
        nn.init.ones_(layer.weight)
        nn.init.zeros_(layer.bias)
    return model


def test_a_change_behind_a_module_is_computed_again_and_seen_by_all_that_follows():
    model, seen = chain(), {"0": Collected(), "2": Collected()}
    places = []
    for place in advance_together(model, BATCHES, seen):
        places.append(place)
        with torch.no_grad():
            model.get_submodule(place).bias.add_(10.0 if place == "0" else 100.0)
    assert places == ["0", "2"]
    assert (seen["0"].first, seen["0"].again) == ([1.0, 2.0, -3.0], [11.0, 12.0, 7.0])
    assert (seen["2"].first, seen["2"].again) == ([11.0, 12.0, 7.0], [111.0, 112.0, 107.0])


def test_hooks_and_threads_are_gone_afterwards_also_where_the_caller_stops_early():
    model, threads = chain(), threading.active_count()
    for _ in advance_together(model, BATCHES, {"0": Collected(), "1": Collected()}):
        break
    assert threading.active_count() == threads
    assert model(torch.ones(1, 1)).item() == 1.0
    assert not model[0]._forward_hooks


def test_an_error_of_the_network_ends_all_passes():
    class Refuses(nn.Module):
        def forward(self, x):
            if x < 0:
                raise ZeroDivisionError("negative")
            return x

    threads = threading.active_count()
    with pytest.raises(PassesError, match="raised ZeroDivisionError") as caught:
        list(advance_together(nn.Sequential(*chain(), Refuses()), BATCHES, {"0": Collected()}))
    assert str(caught.value.__cause__) == "negative"
    assert threading.active_count() == threads


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(1, 1), nn.Linear(1, 1)

    def forward(self, x):
        return self.a(x) if x > 0 else self.b(x)


class Repeats(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = self.b = nn.Linear(1, 1)

    def forward(self, x):
        return self.a(self.a(x))


@pytest.mark.parametrize("network", [Branches, Repeats])
def test_passes_that_stop_at_different_modules_or_twice_at_one_are_refused(network):
    with pytest.raises(PassesError, match="stopped behind"):
        list(advance_together(network(), BATCHES, {"a": Collected(), "b": Collected()}))


def test_passes_need_no_gradients_and_run_in_the_context_of_the_caller():
    from bayesbits.functional import dispatch, implementation

    class Looks(nn.Module):
        def forward(self, x):
            seen.append((torch.is_grad_enabled(), dispatch.forced()))
            return x

    seen: list = []
    with implementation("torch"):
        list(advance_together(nn.Sequential(Looks()), BATCHES[:1], {}))
    assert seen == [(False, "torch")]
