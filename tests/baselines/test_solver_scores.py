"""Scores of widths: by hand on one layer, directions with the second derivative of each loss, and plain runs."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import bayesbits as bb
from bayesbits.baselines.solver_scores import (
    DIRECTIONS,
    fitted_ranges,
    gradient_scores,
    measured_scores,
    round_with,
)
from bayesbits.posttraining.front_points import put_range, read_range
from bayesbits.posttraining.losses import COMPARISONS, divergence
from tests.baselines.networks import calibrated, pairs
from tests.posttraining.networks import attached, examples, trained


def one_layer(weight, **options):
    model = nn.Linear(len(weight[0]), len(weight), bias=False).eval()
    with torch.no_grad():
        model.weight.copy_(torch.tensor(weight))
    return bb.attach(model, torch.zeros(1, len(weight[0])), bb.Spec(bits=(2, 4, 8), prune=False, **options))


@pytest.mark.parametrize("loss", ["mse", "labels"])
def test_by_hand(loss):
    """Two weights w and one input x: the squared error of y = w x is known exactly, and so is its score.

    Batches of one example leave no cross terms between examples. With labels that are y + 1 the gradient of the squared
    error is -1 for every output, so that the score is half the sum of (d x)^2 / 2, d the error of rounding.
    """
    compressor = one_layer([[1.0], [0.3]])
    x = torch.linspace(0.5, 2.0, 32)[:, None]
    compressor.calibrate([x])
    batches = list(x.split(1))
    labels = [compressor.model.weight.detach() @ one.T for one in batches]
    targets = [label.T + 1 for label in labels]
    found = gradient_scores(compressor, batches, targets, loss, F.mse_loss if loss == "labels" else None)
    quantizer, weight = compressor.attachment.quantizers["weight"], compressor.model.weight.detach()
    for bits, own in found.ranges["weight"].items():
        error = round_with(quantizer, weight, None, bits, own) - weight
        squares = error.square().sum().item()
        expected = squares / weight.square().sum().item() if loss == "mse" else squares * x.square().mean().item() / 2
        assert found.scores["weight"][bits] == pytest.approx(expected, rel=1e-3)
    assert found.scores["weight"][2] > found.scores["weight"][4] > found.scores["weight"][8] > 0
    assert set(found.scores) == {"weight"}  # the width of the network's input is fixed


@pytest.mark.parametrize("shape", [(5,), (5, 3, 3), (4, 5)])
@pytest.mark.parametrize("loss", ["output", "cosine", "mse"])
def test_directions_have_the_second_derivative_of_the_loss(loss, shape):
    """The mean of d d^T is the matrix of second derivatives of the loss of one example."""
    generator = torch.Generator().manual_seed(0)
    output = torch.randn(1, *shape, generator=generator, dtype=torch.float64) + 0.5
    draws = DIRECTIONS[loss](output.expand(20_000, *shape), generator).flatten(1)
    found = draws.T @ draws / len(draws)

    def value(flat):
        return COMPARISONS[loss](flat.reshape(output.shape), output)

    expected = torch.autograd.functional.hessian(value, output.flatten())
    assert (found - expected).abs().max() < 0.05 * expected.abs().max()


def test_the_examples_of_a_batch_do_not_cancel():
    """Two halves of a batch with opposite inputs: a weight's mean gradient is zero, and its score is not."""
    compressor = one_layer([[1.0], [0.3]])
    x = torch.cat([torch.ones(64, 1), -torch.ones(64, 1)])
    compressor.calibrate([x])
    labels = [(x @ compressor.model.weight.detach().T + 1)]
    whole = gradient_scores(compressor, [x], labels, "labels", F.mse_loss).scores["weight"][2]
    singly = gradient_scores(compressor, list(x.split(1)), list(labels[0].split(1)), "labels", F.mse_loss)
    assert whole == pytest.approx(singly.scores["weight"][2], rel=0.5)


def test_activations_of_several_layers_and_weights_behind_batch_norm_have_scores():
    compressor = calibrated(bb.Spec(prune=False, residual_bits="learned", bits=(2, 4, 8, 16)))
    state = {name: value.clone() for name, value in compressor.model.state_dict().items()}
    flags = [parameter.requires_grad for parameter in compressor.model.parameters()]
    x, y = examples(96)
    found = gradient_scores(compressor, list(x.split(32)), list(y.split(32)), "labels", None)
    learning = {name for name, q in compressor.attachment.quantizers.items() if q.mode == "learning"}
    assert {"stem.weight", "hidden.input", "hidden.output"} < learning == set(found.scores) == set(found.ranges)
    for own in found.scores.values():
        assert own[2] > own[4] > own[8] > own[16] >= 0
    assert all(torch.equal(value, state[name]) for name, value in compressor.model.state_dict().items())
    assert [parameter.requires_grad for parameter in compressor.model.parameters()] == flags
    assert all(parameter.grad is None for parameter in compressor.model.parameters())


def test_the_range_with_the_smaller_score_is_chosen(monkeypatch):
    compressor = attached(bb.Spec(prune=False, residual_bits=None, bits=(2, 16)))
    x, _ = examples(96)
    compressor.calibrate([x])
    fitted = fitted_ranges(compressor, [x], [2, 16])
    assert {bits: len(choices) for bits, choices in fitted.items()} == {2: 2, 16: 1}
    assert fitted[16][0] == fitted[2][1]  # min/max
    both = gradient_scores(compressor, [x], [], "output", None)
    single = []
    for choice in (0, 1):
        only = {2: [fitted[2][choice]], 16: fitted[16]}
        monkeypatch.setattr("bayesbits.baselines.solver_scores.fitted_ranges", lambda *_, only=only: only)
        single.append(gradient_scores(compressor, [x], [], "output", None).scores)
    better = set()
    for name, own in both.scores.items():
        best = min((0, 1), key=lambda choice: single[choice][name][2])
        better.add(best)
        assert own[2] == single[best][name][2]
        assert both.ranges[name][2] == fitted[2][best][name]
    assert better == {0, 1}


def test_measured_scores_are_those_of_plain_runs():
    compressor = calibrated(bb.Spec(prune=False, residual_bits=None, bits=(2, 4, 8)))
    state = {name: value.clone() for name, value in compressor.model.state_dict().items()}
    inputs, said = [x for x, _ in pairs()], []
    found = measured_scores(compressor, inputs, [], "output", None, said.append)
    assert len(said) == len(inputs)
    assert all(torch.equal(value, state[name]) for name, value in compressor.model.state_dict().items())
    x = torch.cat(inputs)
    with torch.no_grad():
        target = trained()(x)
        quantizers = compressor.attachment.quantizers
        for name, ranges in found.ranges.items():
            put_range(quantizers[name], ranges[8])
            quantizers[name].fix(8)
        reference = divergence(compressor.model(x), target).item()
        for name in ("hidden.weight", "head.input"):
            for bits in (4, 2):
                put_range(quantizers[name], found.ranges[name][bits])
                quantizers[name].fix(bits)
                grown = divergence(compressor.model(x), target).item() - reference
                assert found.scores[name][bits] == pytest.approx(max(0.0, grown), rel=1e-3, abs=1e-6)
            put_range(quantizers[name], found.ranges[name][8])
            quantizers[name].fix(8)
    for own in found.scores.values():
        assert own[2] >= own[4] >= own[8] == 0


def test_rounding_with_another_range_leaves_the_quantizer_alone():
    quantizer = calibrated().attachment.quantizers["hidden.weight"]
    before, x = read_range(quantizer), torch.linspace(-1, 1, 9).expand(8, 9)
    doubled = type(before)(tuple(value + 1.0 for value in before.log_beta), before.signed)
    assert not torch.equal(round_with(quantizer, x, None, 2, before), round_with(quantizer, x, None, 2, doubled))
    assert (read_range(quantizer), quantizer.mode) == (before, "learning")
