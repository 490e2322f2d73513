"""The terms of a tensor add up to its rounding, as the paper's recursion computes it."""

import pytest
import torch
from torch import nn

import bayesbits as bb
from bayesbits.compression.decomposition import decompose
from bayesbits.functional import recursive_gated_quantize
from tests.methods.quantizers import IMAGES, network


@pytest.fixture
def inputs():
    return torch.randn(8, 6, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def compressor(inputs):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 4)).eval()
    compressor = bb.attach(model, inputs, bb.Spec(bits=(2, 4, 8), prune=False))
    compressor.calibrate([inputs])
    compressor.fix(bb.Plan.uniform(compressor.topology, weights=4, activations=8))
    return compressor


def test_the_terms_are_those_of_the_recursion(compressor, inputs):
    found = decompose(compressor, "2.weight", inputs, examples=7)
    values, beta = torch.tensor(found.examples), compressor.attachment.quantizers["2.weight"].beta.detach()
    assert [term.bits for term in found.terms] == [2, 4, 8]
    assert [term.kept for term in found.terms] == [True, True, False]
    assert (found.bits, found.values) == (4, 64)
    for number, gates in ((1, (1.0, 0.0, 0.0)), (2, (1.0, 1.0, 0.0)), (3, (1.0, 1.0, 1.0))):
        summed = torch.tensor([term.examples for term in found.terms[:number]]).sum(0)
        exact = recursive_gated_quantize(values, beta, torch.tensor(gates), signed=True, bits=(2, 4, 8))
        torch.testing.assert_close(summed, exact, atol=1e-6, rtol=1e-5)


def test_errors_shrink_and_examples_are_spread(compressor, inputs):
    found = decompose(compressor, "2.weight", inputs)
    errors = [term.error for term in found.terms]
    assert errors[0] > 4 * errors[1] > 40 * errors[2] > 0
    weight = compressor.model[2].weight
    assert (found.examples[0], found.examples[-1]) == pytest.approx((weight.min().item(), weight.max().item()))
    assert list(found.examples) == sorted(found.examples)
    steps = [term.step for term in found.terms]
    assert steps[0] == pytest.approx(5 * steps[1]) == pytest.approx(85 * steps[2])


def test_activations_are_those_of_the_quantized_network(compressor, inputs):
    hidden = compressor.model[:2](inputs)
    found = decompose(compressor, "2.input", inputs)
    assert found.examples[-1] == pytest.approx(hidden.max().item())
    assert found.values == hidden.numel()


def test_an_unknown_tensor_is_refused_with_the_names(compressor, inputs):
    with pytest.raises(ValueError, match=r"called 'head'; there are: 0\.weight, 2\.weight, 0\.input, 2\.input"):
        decompose(compressor, "head", inputs)


class Upsampled(nn.Sequential):
    """A transposed convolution with channels whose biases do not fit the grid of the others."""

    def __init__(self):
        torch.manual_seed(0)
        super().__init__(nn.ConvTranspose2d(1, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 3, 1))
        self[1].weight.data[:2] = 1e-7
        self[1].bias.data.fill_(0.5)


@pytest.mark.parametrize("name", ["pact", "twn", "lrnet", "lrnet_binary", "lsq", "wage", "dq"])
@pytest.mark.parametrize(("made", "layer"), [(network, 7), (Upsampled, 0)])
def test_the_last_term_ends_at_what_the_method_multiplies_with(name, made, layer):
    widths = {} if name == "dq" else {"activation_bits": 8}
    compressor = bb.attach(made(), IMAGES[:1], bb.Spec(method=name, **widths))
    compressor.calibrate([IMAGES])
    if name == "dq":  # a grid that ends before its values do
        quantizer = compressor.attachment.quantizers[f"{layer}.weight"]
        quantizer.log2_range.data.sub_(1)
        quantizer.log2_step.data.copy_(quantizer.log2_range.data - 2.4)
    compressor.fix()
    own = compressor.model.eval()[layer]
    weight, emitted = own.weight.detach().flatten(), own.effective_weight().detach().flatten()
    shown = decompose(compressor, f"{layer}.weight", IMAGES, examples=9)
    kept = [term for term in shown.terms if term.kept]
    for place, value in enumerate(shown.examples):
        distance = (weight - value).abs()
        if distance.min() > 1e-6:  # of a channel with a grid of its own, in whose steps it is shown
            continue
        assert sum(term.examples[place] for term in kept) == pytest.approx(emitted[distance.argmin()].item(), abs=1e-6)
    if layer == 7:
        assert all((weight - value).abs().min() < 1e-6 for value in shown.examples)
