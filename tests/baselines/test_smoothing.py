"""Smoothing moves outliers of input channels into weights, and leaves what the float network computes as it was."""

import copy
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

import bayesbits as bb
from bayesbits.baselines import smooth
from bayesbits.baselines.smoothing import SmoothedLinear


class Block(nn.Module):
    """Query, key and value behind a normalization, attention, and an MLP; `post` normalizes behind the additions."""

    def __init__(self, channels: int, norm: type[nn.Module] = nn.LayerNorm, post: bool = False) -> None:
        super().__init__()
        self.post = post
        self.first, self.second = norm(channels), norm(channels)
        self.query, self.key, self.value, self.out = (nn.Linear(channels, channels) for _ in range(4))
        self.up, self.down = nn.Linear(channels, 2 * channels), nn.Linear(2 * channels, channels)

    def attend(self, x: Tensor) -> Tensor:
        heads = [projection(x).unsqueeze(1) for projection in (self.query, self.key, self.value)]
        return self.out(F.scaled_dot_product_attention(*heads).squeeze(1))

    def forward(self, x: Tensor) -> Tensor:
        if self.post:
            x = self.first(x)
            x = self.second(x + self.attend(x))
            return x + self.down(F.gelu(self.up(x)))
        x = x + self.attend(self.first(x))
        return x + self.down(F.gelu(self.up(self.second(x))))


def with_outlier(model: nn.Module, channel: int = 1, factor: float = 50.0) -> nn.Module:
    """The network, with one channel of its normalizations much larger than the others."""
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.LayerNorm | nn.RMSNorm):
                module.weight.copy_(torch.rand_like(module.weight) + 0.5)
                module.weight[channel] *= factor
    return model.eval()


@settings(max_examples=6, deadline=None)
@given(
    channels=st.integers(2, 6),
    norm=st.sampled_from([nn.LayerNorm, nn.RMSNorm]),
    post=st.booleans(),
    alpha=st.floats(0, 1),
    multiply=st.booleans(),
    seed=st.integers(0, 9),
)
def test_the_float_network_computes_the_same_bits(
    channels: int, norm: type[nn.Module], post: bool, alpha: float, multiply: bool, seed: int
) -> None:
    torch.manual_seed(seed)
    model, x = with_outlier(Block(channels, norm, post)), torch.randn(2, 3, channels)
    before = model(x)
    smooth(model, [x], alpha, multiply=multiply)
    assert torch.equal(model(x), before)


def test_layers_that_read_one_tensor_share_its_factor_and_the_normalization_takes_it() -> None:
    torch.manual_seed(0)
    model, x = with_outlier(Block(4)), torch.randn(2, 3, 4)
    float_model = copy.deepcopy(model)
    report = smooth(model, [x], multiply=False)
    assert [(entry.layers, entry.norm) for entry in report.inputs] == [
        (("query", "key", "value"), "first"),
        (("up",), "second"),
    ]
    factors = float_model.first.weight / model.first.weight
    for name in ("query", "key", "value"):
        assert torch.equal(getattr(model, name).weight, getattr(float_model, name).weight * factors)
    assert torch.equal(model.first.bias * factors, float_model.first.bias)
    assert [(entry.name, entry.reason) for entry in report.skipped] == [
        ("out", "multiply is False"), ("down", "multiply is False"),
    ]  # fmt: skip
    assert report.inputs[0].spread_after < report.inputs[0].spread_before / 2
    assert "query, key, value: largest channel over the median" in str(report)


def test_factors_are_those_of_the_paper_up_to_powers_of_two() -> None:
    layer = nn.Linear(4, 2, bias=False).eval()
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[1.0, -4.0, 1.0, 0.5], [0.5, 1.0, -1.0, 1.0]]))
    x = torch.tensor([[1.0, 1.0, -16.0, 0.0], [-1.0, 0.5, 2.0, 0.0]])  # the largest: 1, 1, 16, and none
    smooth(layer, [x], 0.5)
    # sqrt(max x / max W) = 1, 1/2, 4, and 1 for the channel without values; the median of the exponents is 0 or -1.
    found = layer.input_factors.reciprocal()
    assert (found / found[0]).tolist() == [1.0, 0.5, 4.0, 1.0]
    layer = nn.Linear(4, 2).eval()
    smooth(layer, [x], 1.0)
    found = layer.input_factors.reciprocal()
    assert (found / found[0])[:3].tolist() == [1.0, 1.0, 16.0], "all of the activations"


def test_where_an_addition_reads_the_normalization_too_the_layers_multiply() -> None:
    torch.manual_seed(0)
    model, x = with_outlier(Block(4, post=True)), torch.randn(2, 3, 4)
    weight = model.first.weight.clone()
    report = smooth(model, [x])
    assert all(entry.norm is None for entry in report.inputs)
    assert report.inputs[0].layers == ("query", "key", "value")
    assert type(model.query) is type(model.down) is SmoothedLinear
    assert torch.equal(model.first.weight, weight)
    assert torch.equal(model.query.input_factors, model.value.input_factors)


@pytest.mark.parametrize("post", [False, True])
@pytest.mark.parametrize("asymmetric", [False, True])
def test_it_reduces_the_error_of_quantization_where_one_channel_is_an_outlier(post: bool, asymmetric: bool) -> None:
    torch.manual_seed(0)
    model, x = with_outlier(Block(8, post=post)), torch.randn(64, 4, 8)
    expected, errors = model(x), []
    for smoothed in (False, True):
        network = copy.deepcopy(model)
        if smoothed:
            smooth(network, [x])
        spec = bb.Spec(bits=(4, 8), asymmetric_activations=asymmetric, per_channel_weights=True)
        compressor = bb.attach(network, x, spec)
        compressor.fix(bb.baselines.uniform(compressor, [x], 8, 8))
        with torch.no_grad():
            errors.append((network(x) - expected).square().mean().item())
    assert errors[1] < 0.5 * errors[0]


def test_a_smoothed_network_is_deployed_and_proven(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = with_outlier(Block(8, post=True)), torch.randn(4, 4, 8)
    smooth(model, [x])
    compressor = bb.attach(model, x, bb.Spec.for_backend("onnxruntime"))
    compressor.fix(bb.baselines.uniform(compressor, [x], 8, 8))
    small = bb.deploy(compressor)
    assert {layer.arithmetic for layer in small.integer.layers} == {"integer"}
    bb.export_onnx(small, x, tmp_path / "small.onnx")
    assert bb.verify(compressor, small, tmp_path / "small.onnx", x).failure is None


def test_layers_that_are_left_as_they_were_are_named() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.first, self.second = nn.LayerNorm(4), nn.Linear(4, 4), nn.Linear(4, 4)
            self.second.weight = self.first.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.second(self.first(self.norm(x)))

    x = torch.randn(3, 4)
    model = Tied().eval()
    before = copy.deepcopy(model.state_dict())
    report = smooth(model, [x])
    assert report.inputs == ()
    assert [(entry.name, entry.reason) for entry in report.skipped] == [
        ("first", "its weight is tied"), ("second", "its weight is tied"),
    ]  # fmt: skip
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    encoder = with_outlier(nn.TransformerEncoderLayer(4, 2, 8, batch_first=True, norm_first=True))
    tokens = torch.randn(2, 3, 4)
    before_output = encoder(tokens)
    report = smooth(encoder, [tokens])
    assert [entry.layers for entry in report.inputs] == [("linear1",)]
    reasons = {entry.name: entry.reason for entry in report.skipped}
    assert (
        reasons["linear2"] == "TransformerEncoderLayer reads the weights of its layers itself, and would not multiply"
    )
    assert torch.equal(encoder(tokens), before_output)


def test_an_input_whose_channels_are_equal_is_left_as_it_was() -> None:
    layer = nn.Linear(4, 2, bias=False).eval()
    with torch.no_grad():
        layer.weight.fill_(0.5)
    report = smooth(layer, [torch.tensor([[1.0, -1.0, 1.0, 0.0], [0.5, 1.0, 0.2, 0.0]])])
    assert (report.inputs, type(layer)) == ((), nn.Linear)
    assert report.skipped[0].reason == "its input channels need no factors"


def test_what_cannot_be_smoothed_is_refused() -> None:
    x = torch.randn(3, 4)
    with pytest.raises(ValueError, match=r"alpha is 2; it is a number from 0 to 1"):
        smooth(nn.Linear(4, 4), [x], 2)
    with pytest.raises(TypeError, match="smooth takes batches"):
        smooth(nn.Linear(4, 4), x)
    compressor = bb.attach(nn.Linear(4, 4), x)
    with pytest.raises(ValueError, match=r"call compressor.detach\(\)"):
        smooth(compressor.model, [x])


def test_only_the_layers_that_are_named_are_smoothed():
    model = with_outlier(Block(4, post=True))
    x = torch.randn(8, 5, 4)
    before = model(x)
    report = smooth(model, [x], layers=("up", "*er*"))
    assert {layer for entry in report.inputs for layer in entry.layers} == {"up", "query"}
    left = {entry.name: entry.reason for entry in report.skipped}
    assert left == dict.fromkeys(("key", "value", "out", "down"), "it is not one of `layers`")
    assert torch.equal(model(x), before)
    with pytest.raises(ValueError, match=r"layers: 'upper' is no linear layer of this network; it has query, key, val"):
        smooth(model, [x], layers=("*", "upper"))
