"""After a method has changed weights or biases, the network without its quantizers is no float network to aim at."""

import copy

import pytest
import torch
from torch import nn

import bayesbits as bb
from bayesbits.baselines import AdaRoundConfig, ReconstructionConfig, adaround, correct_biases, gptq, reconstruct
from bayesbits.baselines.changed_parameters import CORRECTED, ROUNDED, check_unchanged, remember

X = torch.randn(64, 6, generator=torch.Generator().manual_seed(0))
OPTIONS = {"steps": 20, "batch_size": 16}
CHANGES = {
    "adaround": lambda compressor: adaround(compressor, [X], AdaRoundConfig(**OPTIONS)),
    "adaround without biases": lambda compressor: adaround(compressor, [X], AdaRoundConfig(**OPTIONS, bias_lr=0.0)),
    "reconstruct": lambda compressor: reconstruct(compressor, [X], ReconstructionConfig(**OPTIONS)),
    "gptq": lambda compressor: gptq(compressor, [X]),
    "correct_biases": lambda compressor: correct_biases(compressor, [X]),
}
LATER = {
    "adaround": lambda compressor, reference: adaround(compressor, [X], AdaRoundConfig(**OPTIONS), reference=reference),
    "reconstruct": lambda compressor, reference: reconstruct(
        compressor, [X], ReconstructionConfig(**OPTIONS), reference=reference
    ),
    "correct_biases": lambda compressor, reference: correct_biases(compressor, [X], reference=reference),
}


def fixed() -> tuple[bb.Compressor, nn.Module]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3)).eval()
    reference = copy.deepcopy(model)
    compressor = bb.attach(model, X, bb.Spec(bits=(2, 4, 8)))
    compressor.fix(bb.baselines.uniform(compressor, [X], weights=2, activations=8))
    return compressor, reference


@pytest.mark.parametrize("later", LATER)
@pytest.mark.parametrize("first", CHANGES)
def test_a_later_method_asks_for_the_float_network_and_works_with_it(first, later):
    compressor, reference = fixed()
    CHANGES[first](compressor)
    before = copy.deepcopy(compressor.model.state_dict())
    what = "biases of this network were corrected" if first == "correct_biases" else "weights .* were rounded"
    for one in (compressor, bb.Compressor(copy.deepcopy(compressor.model))):
        with pytest.raises(ValueError, match=rf"{what}.* not the float network any more: pass reference="):
            LATER[later](one, None)
    assert all(torch.equal(value, before[name]) for name, value in compressor.model.state_dict().items())
    LATER[later](compressor, reference)


def test_what_the_error_is_good_for():
    """Biases that are corrected towards the rounded network undo what its rounding was learned for."""
    wrong, right = (fixed() for _ in range(2))
    for compressor, reference in (wrong, right):
        CHANGES["adaround"](compressor)
        compressor.attachment.notes.clear()
        correct_biases(compressor, [X], reference=reference if compressor is right[0] else None)
    with torch.no_grad():
        means = [(compressor.model(X) - reference(X)).mean(dim=0).norm() for compressor, reference in (wrong, right)]
    assert means[0] > 5 * means[1]


def test_the_float_weights_again_or_a_fine_tuned_network_are_references():
    for change in ("state", "training"):
        compressor, reference = fixed()
        CHANGES["adaround"](compressor)
        if change == "state":
            compressor.model.load_state_dict(reference.state_dict())
        else:
            with torch.no_grad():
                for parameter in compressor.model.parameters():
                    parameter.add_(1e-4)
        correct_biases(compressor, [X])


def test_a_method_that_failed_has_changed_nothing():
    compressor, _ = fixed()
    with pytest.raises(ZeroDivisionError):
        adaround(compressor, [X], AdaRoundConfig(**OPTIONS), progress=lambda *_: 1 / 0)
    correct_biases(compressor, [X])


def test_the_error_names_the_parameter_and_the_change():
    compressor, _ = fixed()
    remember(compressor, [compressor.model[2].weight], ROUNDED)
    remember(compressor, [compressor.model[0].bias], CORRECTED)
    with pytest.raises(ValueError, match=r"rounded by a method before \(2.weight, for one\).*: do this"):
        check_unchanged(compressor, "do this")
    nn.init.zeros_(compressor.model[2].weight)
    with pytest.raises(ValueError, match=r"corrected before \(0.bias, for one\)"):
        check_unchanged(compressor, "do this")
