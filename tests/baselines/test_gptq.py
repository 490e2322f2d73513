"""GPTQ chooses codes whose errors compensate for each other."""

import copy
import sys
from itertools import product

import pytest
import torch
from torch import nn

import bayesbits as bb
from bayesbits.baselines import gptq, uniform
from bayesbits.baselines.gptq import _compensated_codes


def correlated(rows: int, channels: int) -> torch.Tensor:
    """Inputs whose channels are close to each other, as errors of single weights then can be compensated."""
    torch.manual_seed(0)
    return torch.randn(rows, 1) + 0.3 * torch.randn(rows, channels)


def fixed(model: nn.Module, x: torch.Tensor, bits: int = 2, **options: object) -> bb.Compressor:
    compressor = bb.attach(model.eval(), x, bb.Spec(bits=(2, 4, 8), prune=False, **options))  # type: ignore[arg-type]
    compressor.fix(uniform(compressor, [x], bits, 8))
    return compressor


def test_two_columns_by_hand() -> None:
    # H = [[2, 1], [1, 1]]: column 0 has the larger curvature. 0.4 rounds to 0; the other column takes
    # -(0.4 - 0) [H^-1]_01 / [H^-1]_00 = -0.4 * (-1) / 1, and 0.2 + 0.4 = 0.6 rounds to 1 instead of 0.
    curvature = torch.tensor([[2.0, 1.0], [1.0, 1.0]], dtype=torch.float64)
    weight, step = torch.tensor([[0.4, 0.2]], dtype=torch.float64), torch.ones(1, 1, dtype=torch.float64)
    assert _compensated_codes(weight, step, (-1, 1), curvature, 1e-9).tolist() == [[0.0, 1.0]]
    swapped = _compensated_codes(weight.flip(1), step, (-1, 1), curvature.flip(0, 1), 1e-9)
    assert swapped.tolist() == [[1.0, 0.0]], "columns come in the order of their curvature"


def test_blocks_of_columns_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    x = correlated(64, 12).double()
    weight, step = torch.randn(5, 12, dtype=torch.float64), torch.full((5, 1), 0.4, dtype=torch.float64)
    whole = _compensated_codes(weight, step, (-7, 7), x.T @ x, 0.01)
    monkeypatch.setattr(sys.modules["bayesbits.baselines.gptq"], "BLOCK", 5)  # the package has the function there
    assert torch.equal(_compensated_codes(weight, step, (-7, 7), x.T @ x, 0.01), whole)


@pytest.mark.parametrize("per_channel", [False, True])
def test_the_error_is_far_below_that_of_nearest_codes(per_channel: bool) -> None:
    x = correlated(256, 16)
    model = nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 4))
    compressor = fixed(model, x, per_channel_weights=per_channel)
    network = compressor.model
    plan, before = compressor.plan(), copy.deepcopy(network.state_dict())
    seen: list[tuple[str, int, int]] = []
    report = gptq(compressor, [x[:128], x[128:]], progress=lambda *what: seen.append(what))
    assert seen == [("0", 1, 2), ("2", 2, 2)]
    first = report.units[0]
    assert 0 < first.moved < first.weights == 128
    assert first.error < 0.3 * first.nearest_error
    assert report.plan == plan == compressor.plan()
    weight = network[0].effective_weight().detach()
    torch.testing.assert_close(network[0].weight.detach(), weight, msg="weights are the numbers of their codes")
    float_weight = before["0.weight"]
    error = (x @ (weight - float_weight).T).square().sum(1).mean()
    assert error.item() == pytest.approx(first.error, rel=1e-4)
    assert torch.equal(network[0].bias, before["0.bias"])


def test_it_is_close_to_the_best_of_all_codes() -> None:
    x = correlated(64, 4)
    compressor = fixed(nn.Sequential(nn.Linear(4, 1, bias=False)), x)
    layer = compressor.model[0]
    weight, step = layer.weight.detach().clone(), layer.weight_steps().detach()
    errors = [
        (x @ (torch.tensor(codes) * step - weight[0])).square().mean().item() for codes in product((-1, 0, 1), repeat=4)
    ]
    (found,) = gptq(compressor, [x]).units
    assert min(errors) * (1 - 1e-4) <= found.error <= sorted(errors)[3]


def test_positions_that_do_not_count_have_no_say() -> None:
    x = correlated(64, 8).reshape(16, 4, 8)
    mask = torch.arange(4).expand(16, 4) < 3
    padded = x.clone()
    padded[~mask] = 50 * torch.randn(16, 8)
    found = []
    for inputs, positions in ((x[:, :3], None), (padded, lambda batch: mask.int()), (padded, None)):
        torch.manual_seed(1)
        compressor = fixed(nn.Sequential(nn.Linear(8, 4)), inputs)
        found.append((gptq(compressor, [inputs], positions=positions).units[0].error, compressor.model[0].weight))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-6)
    assert torch.equal(found[0][1], found[1][1])
    assert not torch.equal(found[1][1], found[2][1])


def test_other_layers_are_skipped_and_networks_that_are_not_ready_are_refused() -> None:
    x = torch.randn(4, 2, 6)
    model = nn.Sequential(nn.Conv1d(2, 3, 3), nn.Flatten(), nn.Linear(12, 2))
    report = gptq(fixed(model, x), [x])
    assert [(entry.name, entry.reason) for entry in report.skipped] == [
        ("0", "it is a convolution, and this is for linear layers")
    ]
    assert "0 is left as it was" in str(report)
    learning = bb.attach(nn.Linear(6, 2).eval(), x)
    with pytest.raises(ValueError, match=r"gptq works on a final plan.*still learning"):
        gptq(learning, [x])
    with pytest.raises(ValueError, match="damping is 0; it is a number above 0"):
        gptq(fixed(nn.Linear(6, 2), x), [x], damping=0)
