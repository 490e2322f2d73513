"""Bias correction: the shift by hand, means that agree afterwards, and what is changed and what is not."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import bayesbits as bb
from bayesbits.baselines import bias_correction, correct_biases, correct_biases_without_data
from bayesbits.nn.layer import AttachedLayer
from tests.graph.networks import randomize
from tests.graph.products import Functional

FLOAT_INPUT = bb.Spec(input_bits=32, residual_bits=None, prune=False)


def fixed(model: nn.Module, x: Tensor, weights: int = 2, activations: int = 32, spec: bb.Spec = FLOAT_INPUT):
    compressor = bb.attach(model.eval(), x, spec)
    compressor.calibrate([x])
    plan = bb.Plan.uniform(compressor.topology, weights, activations, input_bits=spec.input_bits)
    floats = {name: 32 for name in plan.bits if name not in compressor.attachment.quantizers}
    compressor.fix(bb.Plan({**plan.bits, **floats}))
    return compressor


def test_the_shift_by_hand():
    model = nn.Sequential(nn.Linear(2, 1))
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[3.0, 0.9]]))
        model[0].bias.copy_(torch.tensor([10.0]))
    compressor = fixed(model, torch.tensor([[1.0, 2.0], [3.0, 6.0]]))
    compressor.attachment.quantizers["0.weight"].set_range(3.0)
    # With 2 bits the step is 2: 3 becomes 2 and 0.9 becomes 0. E[x] = (2, 4), so that the shift is
    # (2 - 3) * 2 + (0 - 0.9) * 4 = -5.6, and the bias takes it back.
    report = correct_biases(compressor, [torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 6.0]])])
    assert model[0].bias.item() == pytest.approx(15.6, rel=1e-5)
    (layer,) = report.layers
    assert (layer.name, layer.parameter) == ("0", "0.bias")
    assert layer.shift == pytest.approx(5.6, rel=1e-5)
    assert report.plan == compressor.plan()
    assert str(report) == "0: a shift of 5.6 was subtracted from 0.bias"


class Network(nn.Module):
    """A layer with a bias, one with a batch norm, one with both, one that runs twice, and one with neither."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 6, 3, padding=1)
        self.second, self.second_norm = nn.Conv2d(6, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6)
        self.third, self.third_norm = nn.Conv2d(6, 6, 1), nn.BatchNorm2d(6)
        self.twice = nn.Conv2d(6, 6, 1)
        self.bare = nn.Linear(6, 4, bias=False)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.second_norm(self.second(F.relu(self.first(x)))))
        x = F.relu(self.third_norm(self.third(x)))
        x = F.relu(self.twice(x)) + F.relu(self.twice(1 - x))
        return self.head(self.bare(x.mean((2, 3))))


def means(model: nn.Module, name: str, x: Tensor) -> Tensor:
    """The mean of what a module returns by channel, over its calls."""
    seen: list[Tensor] = []
    handle = model.get_submodule(name).register_forward_hook(lambda module, inputs, output: seen.append(output))
    with torch.no_grad():
        model(x)
    handle.remove()
    output = torch.cat(seen)
    return output.mean([axis for axis in range(output.dim()) if axis != 1])


def test_means_agree_afterwards_and_only_biases_change():
    torch.manual_seed(0)
    model, x = randomize(Network()), torch.randn(16, 3, 6, 6)
    compressor = fixed(model, x, 4, 8)
    reference, before = bb.Compressor(copy.deepcopy(model)).detach(), copy.deepcopy(model.state_dict())
    calls: list[tuple[str, int, int]] = []
    report = correct_biases(compressor, [x[:10], x[10:]], progress=lambda *call: calls.append(call))
    assert calls == [
        (name, index + 1, 6) for index, name in enumerate(("first", "second", "third", "twice", "bare", "head"))
    ]
    for name in ("first", "second_norm", "third", "twice", "head"):
        # A fixed network rounds its biases, and what is corrected lies on their grid.
        step = model.get_submodule(name.removesuffix("_norm")).bias_step()
        half = 0.0 if step is None else step.max().item() / 2
        torch.testing.assert_close(means(model, name, x), means(reference, name, x), rtol=0.0, atol=half + 1e-4)
    assert [entry.parameter for entry in report.layers] == [
        "first.bias", "second_norm.bias", "third.bias", "twice.bias", "head.bias",
    ]  # fmt: skip
    (skipped,) = report.skipped
    assert skipped.name == "bare"
    assert "has a bias" in skipped.reason
    assert str(report).endswith("\nbare is left as it was: neither it nor a batch norm of its own has a bias")
    changed = {key for key, value in model.state_dict().items() if not torch.equal(value, before[key])}
    assert changed == {entry.parameter for entry in report.layers}


def test_a_reference_is_what_means_are_brought_to():
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), torch.randn(32, 3)
    reference = copy.deepcopy(model)
    compressor = fixed(model, x, 4)
    with torch.no_grad():
        model[0].weight.mul_(1.3)  # changed since, so that this network is no reference any more
    correct_biases(compressor, [x], reference=reference)
    for name in ("0", "2"):
        torch.testing.assert_close(means(model, name, x), means(reference, name, x), rtol=1e-5, atol=1e-5)


def test_a_second_correction_finds_nothing_but_what_rounding_the_biases_leaves():
    torch.manual_seed(0)
    model, x = randomize(Network()), torch.randn(16, 3, 6, 6)
    reference = copy.deepcopy(model)
    compressor = fixed(model, x, 4, 8, bb.Spec(input_bits=32, residual_bits=None))
    compressor.fix(bb.Plan(compressor.plan().bits, {"first": (0, 1, 3), "second": (0, 2, 4, 5)}))
    reports = [correct_biases(compressor, [x[:10], x[10:]], reference=reference) for _ in range(3)]
    assert [layer.shift > 0.01 for layer in reports[0].layers] == [False, True, True, True, True]
    for report in reports[1:]:
        for layer in report.layers:
            step = model.get_submodule(layer.name).bias_step()
            assert layer.shift <= 1e-4 + (0.0 if step is None else step.max().item() / 2), layer


@pytest.mark.parametrize("first", ["data", "no data"])
def test_corrected_biases_are_no_float_network_to_agree_with(first):
    torch.manual_seed(0)
    model = randomize(nn.Sequential(nn.Linear(3, 4, bias=False), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2)))
    x, float_state = torch.randn(32, 3), copy.deepcopy(model.state_dict())
    compressor = fixed(model, x, 4)
    if first == "data":
        correct_biases(compressor, [x])
    else:
        correct_biases_without_data(compressor, x[:2])
    copied = bb.Compressor(copy.deepcopy(model))
    for one in (compressor, copied):
        with pytest.raises(ValueError, match=r"corrected before .*pass reference="):
            correct_biases(one, [x])
        with pytest.raises(ValueError, match=r"corrected before .*use correct_biases with data and reference="):
            correct_biases_without_data(one, x[:2])
    model.load_state_dict(float_state)  # the float network's own biases again
    correct_biases(compressor, [x])


def test_where_correction_fails_no_bias_has_changed():
    torch.manual_seed(0)
    model, x = randomize(Network()), torch.randn(16, 3, 6, 6)
    compressor = fixed(model, x, 4, 8)
    before = copy.deepcopy(model.state_dict())

    def stop(name: str, number: int, count: int) -> None:
        if number == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        correct_biases(compressor, [x], progress=stop)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    correct_biases(compressor, [x])  # and the network is still its own reference


def test_without_data_by_hand():
    model = nn.Sequential(nn.Conv2d(1, 2, 1, bias=False), nn.BatchNorm2d(2), nn.ReLU(), nn.Conv2d(2, 1, 2)).eval()
    with torch.no_grad():
        model[1].weight.copy_(torch.tensor([-1.0, 2.0]))
        model[1].bias.copy_(torch.tensor([0.0, 50.0]))
        model[3].weight.copy_(torch.tensor([[[[3.0, 0.9], [0.0, 0.0]], [[3.0, 0.0], [0.0, 0.0]]]]))
        model[3].bias.fill_(1.0)
    compressor = fixed(model, torch.randn(8, 1, 4, 4))
    compressor.attachment.quantizers["3.weight"].set_range(3.0)
    report = correct_biases_without_data(compressor, torch.randn(1, 1, 4, 4))
    # E[x] = (1 / sqrt(2 pi), 50); 3 becomes 2 and 0.9 becomes 0: the shift is -1.9 / sqrt(2 pi) - 50.
    assert model[3].bias.item() == pytest.approx(1 + 1.9 / math.sqrt(2 * math.pi) + 50, rel=1e-5)
    assert [entry.name for entry in report.layers] == ["3"]
    assert [entry.name for entry in report.skipped] == ["0"]
    assert "comes before" in report.skipped[0].reason


def test_without_data_comes_close_to_what_data_says():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, bias=False), nn.BatchNorm2d(32), nn.ReLU6(),
        nn.Conv2d(32, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 8),
    )  # fmt: skip
    x = torch.randn(64, 3, 6, 6)
    for _ in range(30):
        model(x)  # in training: the batch norms learn their statistics
    reference = copy.deepcopy(model.eval())
    compressor = fixed(model, x, 2, spec=bb.Spec(input_bits=32, prune=False, rules={"0": {"skip": True}}))
    wanted = means(reference, "3", x)
    before = (means(model, "3", x) - wanted).square().mean()
    report = correct_biases_without_data(compressor, x[:1])
    assert [entry.name for entry in report.layers] == ["3", "8"]
    assert (means(model, "3", x) - wanted).square().mean() < 0.1 * before


def test_functions_that_do_not_clip_are_listed():
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.GELU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    report = correct_biases_without_data(fixed(model, torch.randn(8, 3)), torch.randn(8, 3))
    reasons = {entry.name: entry.reason for entry in report.skipped}
    assert reasons["3"] == "gelu before it does not clip"
    assert "no batch norm" in reasons["5"]


def test_clear_errors():
    model, x = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), torch.randn(8, 3)
    with pytest.raises(TypeError, match="Compressor"):
        correct_biases(model, [x])  # type: ignore[arg-type]
    compressor = bb.attach(model, x, FLOAT_INPUT)
    compressor.calibrate([x])
    with pytest.raises(ValueError, match=r"0\.weight is still learning: call compressor\.fix"):
        correct_biases(compressor, [x])
    compressor.fix()
    with pytest.raises(ValueError, match=r"training mode.*model\.eval"):
        correct_biases(compressor, [x])
    model.eval()
    with pytest.raises(TypeError, match=r"pass \[batch\]"):
        correct_biases(compressor, x)
    with pytest.raises(ValueError, match="at least 2 examples, and the batches have 0"):
        correct_biases(compressor, [])
    with pytest.raises(ValueError, match=r"the 8 examples .* are all the same"):
        correct_biases(compressor, [torch.ones(8, 3)])
    with pytest.raises(ValueError, match="mean that is not finite"):
        correct_biases(compressor, [x * torch.nan])
    assert isinstance(model[0], AttachedLayer)


class Residual(nn.Module):
    """Biases of a batch norm, of a convolution whose output is quantized as an operand, and of a linear layer."""

    def __init__(self):
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6)
        self.branch, self.other = nn.Conv2d(6, 6, 3, padding=1), nn.Conv2d(6, 6, 1)
        self.last = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.stem(x)))
        x = self.other(x) + self.branch(x)
        return self.last(F.relu(x).mean((2, 3)))


class Remembers(Residual):
    """Carries a tensor from one module to another beside its arguments."""

    def forward(self, x: Tensor) -> Tensor:
        self.kept = F.relu(self.norm(self.stem(x)))
        x = self.branch(self.kept)
        return self.last(F.relu(self.other(self.kept) + x).mean((2, 3)))


class Repeated(Residual):
    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.stem(x)))
        return self.last(F.relu(self.branch(F.relu(self.branch(x)) + self.other(x))).mean((2, 3)))


def corrected_biases(network: type[nn.Module], monkeypatch, *, in_one_pass: bool):
    """The corrected parameters, and how often the network ran up to a layer."""
    torch.manual_seed(0)
    x = torch.randn(6, 3, 5, 5)
    compressor = fixed(randomize(network()), x, 3, 4, bb.Spec(residual_bits=4, prune=False))
    runs: list[str] = []
    original = bias_correction.run_to
    with monkeypatch.context() as patch:
        patch.setattr(bias_correction, "run_to", lambda *a, **k: (runs.append(a[1].name), original(*a, **k)))
        if not in_one_pass:
            patch.setattr(bias_correction, "_correct_in_one_pass", lambda *a: None)
        report = correct_biases(compressor, [x[:2], x[2:3], x[3:]])
    return report, compressor.model.state_dict(), runs


@pytest.mark.parametrize(("network", "works"), [(Residual, True), (Remembers, False), (Repeated, False)])
def test_one_pass_over_all_batches_gives_the_same_bits_as_a_pass_for_every_layer(network, works, monkeypatch):
    report, state, runs = corrected_biases(network, monkeypatch, in_one_pass=True)
    assert bool(runs) is not works
    expected_report, expected, _ = corrected_biases(network, monkeypatch, in_one_pass=False)
    assert report == expected_report
    assert [layer.shift > 0 for layer in report.layers] == [True] * 4
    assert all(torch.equal(value, expected[name]) for name, value in state.items())


def test_where_outputs_would_fill_the_memory_layers_are_corrected_one_by_one(monkeypatch):
    monkeypatch.setattr(bias_correction, "_MOST_VALUES", 6 * 6 * 25 - 1)
    assert corrected_biases(Residual, monkeypatch, in_one_pass=True)[2]
    monkeypatch.setattr(bias_correction, "_MOST_VALUES", 6 * 6 * 25)
    assert not corrected_biases(Residual, monkeypatch, in_one_pass=True)[2]


def test_the_bias_of_a_product_is_corrected_where_it_is_a_parameter():
    class Doubled(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return F.linear(x, self.weight, 2 * self.bias)

    torch.manual_seed(0)
    x = torch.randn(32, 2, 5, 5)
    compressor = fixed(nn.Sequential(Functional(2), nn.ReLU(), Doubled(5, 3)), x)
    report = correct_biases(compressor, [x])
    assert [(layer.name, layer.parameter) for layer in report.layers] == [
        ("0.first", "0.shift"), ("0.inner", "0.inner.bias")
    ]  # fmt: skip
    reasons = {layer.name: layer.reason for layer in report.skipped}
    assert reasons == {
        "0.last": "neither it nor a batch norm of its own has a bias",
        "2": "its bias is computed from parameters, and cannot be written",
    }
