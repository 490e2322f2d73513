"""The losses, computed by hand on layers small enough for it."""

import math

import pytest
import torch
from torch import nn

import bayesbits as bb
from bayesbits.posttraining.losses import batch_loss, divergence, float_log_probabilities, layers_loss
from tests.posttraining.networks import attached, examples


def test_divergence_by_hand():
    p, q = torch.tensor([[0.5, 0.5], [1.0, 1.0]]), torch.tensor([[0.25, 0.75], [1.0, 1.0]])
    target = p.log().log_softmax(-1)
    by_hand = 0.5 * math.log(0.5 / 0.25) + 0.5 * math.log(0.5 / 0.75)
    assert divergence(q.log(), target).item() == pytest.approx(by_hand / 2, rel=1e-6)  # the second example is equal


def test_layers_loss_by_hand():
    """At 2 bits, with steps of 2/3, weights 1 and 0.25 become 2/3 and 0; the input stays in float."""
    model = nn.Sequential(nn.Linear(2, 1, bias=False)).eval()
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[1.0, 0.25]]))
    compressor = bb.attach(model, torch.zeros(1, 2), bb.Spec(prune=False, input_bits=32, bits=(2,)))
    compressor.calibrate([torch.ones(1, 2)])
    x = torch.tensor([[1.0, 1.0], [0.0, 1.0]])  # in float 1.25 and 0.25, rounded 2/3 and 0
    loss = layers_loss(compressor, x)
    assert loss.item() == pytest.approx(((1.25 - 2 / 3) ** 2 + 0.25**2) / (1.25**2 + 0.25**2), rel=1e-5)


def test_layers_are_compared_behind_their_batch_norm_and_before_an_activation_in_place():
    class InPlace(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.norm, self.relu = nn.Linear(2, 2), nn.BatchNorm1d(2), nn.ReLU(inplace=True)

        def forward(self, x):
            return self.relu(self.norm(self.layer(x)))

    torch.manual_seed(0)
    model = InPlace().eval()
    model.norm.bias.data.fill_(-0.5)
    compressor = bb.attach(model, torch.zeros(2, 2), bb.Spec(prune=False, bits=(2, 4)))
    x = torch.randn(32, 2)
    compressor.calibrate([x])
    loss = layers_loss(compressor, x)
    wanted = nn.functional.batch_norm(
        nn.functional.linear(x, model.layer.weight, model.layer.bias),
        model.norm.running_mean, model.norm.running_var, model.norm.weight, model.norm.bias,
    )  # fmt: skip
    quantized = model.layer.parts.input(x)
    given = model.norm(nn.functional.linear(quantized, model.layer.effective_weight(), model.layer.bias))
    torch.testing.assert_close(loss, (given - wanted).square().sum() / wanted.square().sum())
    assert loss > 0


def test_the_float_network_is_the_one_before_attaching_whatever_gates_and_channels_say():
    compressor = attached(bb.Spec(bits=(2, 4), input_bits=4))
    x, _ = examples()
    compressor.calibrate([x])
    with torch.no_grad():
        for parameter in compressor.attachment.parameters():
            parameter.sub_(8.0)  # every gate closed, every range wrong
    state = {name: value.clone() for name, value in compressor.model.state_dict().items()}
    found = float_log_probabilities(compressor, [x])
    assert all(torch.equal(value, state[name]) for name, value in compressor.model.state_dict().items())
    with torch.no_grad():
        torch.testing.assert_close(found[0], compressor.detach()(x).log_softmax(-1), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("loss", ["labels", "output", "layers"])
def test_every_loss_reaches_gates_and_ranges(loss):
    compressor = attached(bb.Spec(prune=False, gates="sigmoid", bits=(2, 4)))
    x, y = examples()
    compressor.calibrate([x])
    compressor.attachment.train()
    batch_loss(compressor, loss, [x], [y])(0).backward()
    quantizer = compressor.attachment.quantizers["stem.weight"]
    assert quantizer.gates.logits.grad.abs().sum() > 0
    assert quantizer.log_beta.grad.abs() > 0


def test_outputs_that_are_no_logits_are_refused():
    with pytest.raises(TypeError, match="returned a tuple: choose loss='layers'"):
        divergence((torch.zeros(2, 2),), torch.zeros(2, 2))
