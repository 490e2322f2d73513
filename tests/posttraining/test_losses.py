"""The losses, computed by hand on layers small enough for it."""

import dataclasses
import math

import pytest
import torch
from torch import nn

import bayesbits as bb
from bayesbits.posttraining.losses import (
    batch_loss,
    channel_axis,
    cosine_distance,
    divergence,
    float_outputs,
    layers_loss,
    over_tensors,
    relative_squared_error,
)
from tests.posttraining.networks import attached, examples


def test_divergence_by_hand():
    p, q = torch.tensor([[0.5, 0.5], [1.0, 1.0]]), torch.tensor([[0.25, 0.75], [1.0, 1.0]])
    target = p.log()
    by_hand = 0.5 * math.log(0.5 / 0.25) + 0.5 * math.log(0.5 / 0.75)
    assert divergence(q.log(), target).item() == pytest.approx(by_hand / 2, rel=1e-6)  # the second example is equal


def test_layers_loss_by_hand():
    """At 2 bits, with steps of 1, weights 1 and 0.25 become 1 and 0; the input stays in float."""
    model = nn.Sequential(nn.Linear(2, 1, bias=False)).eval()
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[1.0, 0.25]]))
    compressor = bb.attach(model, torch.zeros(1, 2), bb.Spec(prune=False, input_bits=32, bits=(2,)))
    compressor.calibrate([torch.ones(1, 2)])
    x = torch.tensor([[1.0, 1.0], [0.0, 1.0]])  # in float 1.25 and 0.25, rounded 1 and 0
    loss = layers_loss(compressor, x)
    assert loss.item() == pytest.approx((0.25**2 + 0.25**2) / (1.25**2 + 0.25**2), rel=1e-5)


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
    found = float_outputs(compressor, [x])
    assert all(torch.equal(value, state[name]) for name, value in compressor.model.state_dict().items())
    with torch.no_grad():
        torch.testing.assert_close(found[0], compressor.detach()(x), rtol=1e-4, atol=1e-5)


def absolute_difference(output, float_output):
    return (output - float_output).abs().mean()


@pytest.mark.parametrize("loss", ["labels", "output", "layers", "cosine", "mse", absolute_difference])
def test_every_loss_reaches_gates_and_ranges(loss):
    compressor = attached(bb.Spec(prune=False, gates="sigmoid", bits=(2, 4)))
    x, y = examples()
    compressor.calibrate([x])
    compressor.attachment.train()
    batch_loss(compressor, loss, [x], [y])(0).backward()
    quantizer = compressor.attachment.quantizers["stem.weight"]
    assert quantizer.gates.logits.grad.abs().sum() > 0
    assert quantizer.log_beta.grad.abs() > 0


def test_cosine_and_squared_error_by_hand():
    y, f = torch.tensor([[3.0, 4.0], [0.0, 2.0]]), torch.tensor([[4.0, 3.0], [0.0, 1.0]])
    assert cosine_distance(y, f).item() == pytest.approx((1 - 24 / 25) / 2, rel=1e-5)
    assert relative_squared_error(y, f).item() == pytest.approx((1 + 1 + 0 + 1) / (16 + 9 + 0 + 1), rel=1e-6)


def test_dense_outputs_have_their_probabilities_and_vectors_along_the_channels():
    torch.manual_seed(0)
    y, f = torch.randn(2, 5, 3, 4), torch.randn(2, 5, 3, 4)
    flat = [one.movedim(1, -1).reshape(-1, 5) for one in (y, f)]
    for compare in (divergence, cosine_distance):
        assert compare(y, f).item() == pytest.approx(compare(*flat).item(), rel=1e-5)
    assert [channel_axis(torch.zeros([2] * axes)) for axes in (2, 3, 4, 5)] == [-1, -1, 1, 1]


@dataclasses.dataclass
class Heads:
    first: torch.Tensor
    second: torch.Tensor
    classes: torch.Tensor


@pytest.mark.parametrize(
    "form", [tuple, lambda parts: dict(zip("abc", parts, strict=True)), lambda parts: Heads(*parts)]
)
def test_the_losses_of_several_outputs_are_added_and_integers_left_out(form):
    torch.manual_seed(0)
    ours, theirs = ([torch.randn(4, 3), torch.randn(4, 2, 5, 5), torch.randint(3, (4,))] for _ in range(2))
    found = over_tensors(divergence)(form(ours), form(theirs))
    assert found.item() == pytest.approx(
        sum(divergence(*pair).item() for pair in list(zip(ours, theirs, strict=True))[:2])
    )


def test_a_function_of_ones_own_gets_the_outputs_as_they_are():
    compressor = attached(bb.Spec(prune=False, bits=(2, 4)))
    x, _ = examples()
    compressor.calibrate([x])
    seen = []

    def own(output, float_output):
        seen.append((output, float_output))
        return output.sum() * 0

    batch_loss(compressor, own, [x, 2 * x], [])(1)
    ((output, float_output),) = seen
    with torch.no_grad():
        torch.testing.assert_close(output, compressor.model(2 * x))
        torch.testing.assert_close(float_output, compressor.detach()(2 * x), rtol=1e-4, atol=1e-5)


def test_outputs_without_float_tensors_are_refused():
    with pytest.raises(TypeError, match=r"a tuple with 0 float tensors.*choose loss='layers', or a function"):
        over_tensors(divergence)((torch.zeros(2, dtype=torch.int64),), (torch.zeros(2, 2),))


def test_layers_are_compared_behind_the_instance_norm_that_has_their_gate():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.InstanceNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 1)).eval()
    x = torch.randn(8, 2, 6, 6)
    compressor = bb.attach(model, x, bb.Spec(bits=(4, 8), gates="sigmoid"))
    compressor.calibrate([x])
    logits = compressor.attachment.channel_gates["0"].gates.logits
    with torch.no_grad():
        logits.fill_(0.5)
    compressor.attachment.train()  # in evaluation mode gates are 0 or 1
    layers_loss(compressor, x).backward()
    assert logits.grad.abs().min() > 1e-3
