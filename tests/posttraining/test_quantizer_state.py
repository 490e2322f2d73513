"""The quantizers of a live network are restored after a block, after errors too, and reset for a sweep."""

import pytest
import torch

import bayesbits as bb
from bayesbits.functional.gates import INITIAL_LOGIT
from bayesbits.posttraining.quantizer_state import (
    as_float_network,
    forget_sweep,
    only_learning,
    quantizers_restored,
    quantizers_restored_on_failure,
    remember_sweep,
    reset_for_sweep,
)
from tests.posttraining.networks import attached, examples


def everything(compressor: bb.Compressor) -> list:
    model = compressor.model
    return [
        {name: value.clone() for name, value in model.state_dict().items() if not name.endswith("counter")},
        [parameter.requires_grad for parameter in model.parameters()],
        [module.training for module in model.modules()],
        [(q.mode, q.fixed_bits, q.signed) for q in compressor.attachment.quantizers.values()],
    ]


def same(one: list, other: list) -> bool:
    return one[1:] == other[1:] and all(torch.equal(value, other[0][name]) for name, value in one[0].items())


@pytest.mark.parametrize("mode", [quantizers_restored, as_float_network])
@pytest.mark.parametrize("fails", [False, True])
def test_everything_comes_back(mode, fails):
    compressor = attached(bb.Spec())
    compressor.calibrate([examples()[0]])
    compressor.attachment.quantizers["head.weight"].fix(4)
    compressor.attachment.quantizers["hidden.weight"].log_beta.requires_grad_(False)
    before = everything(compressor)
    try:
        with mode(compressor.attachment):
            compressor.fix(bb.Plan.uniform(compressor.topology, 2, 2, residual_bits=2))
            compressor.attachment.quantizers["stem.weight"].set_range(9.0)
            assert not same(everything(compressor), before)
            if fails:
                raise RuntimeError
    except RuntimeError:
        pass
    assert same(everything(compressor), before)


def test_only_what_is_asked_for_learns():
    compressor = attached()
    compressor.calibrate([examples()[0]])
    before = everything(compressor)
    with only_learning(compressor, ("gates",)) as groups:
        asking = {id(parameter) for parameter in compressor.model.parameters() if parameter.requires_grad}
        assert asking == {id(parameter) for parameter in groups["gates"]}
        assert not compressor.model.norm.training
        assert compressor.attachment.training
        compressor.model(examples()[0]).sum().backward()
    assert same(everything(compressor), before)
    assert all(parameter.grad is None for parameter in compressor.model.parameters())


def test_a_network_in_training_mode_is_refused_by_name():
    compressor = attached()
    compressor.model.norm.train()
    with (
        pytest.raises(ValueError, match=r"the module norm is in training mode.*model.eval\(\)"),
        only_learning(compressor, ("gates",)),
    ):
        pass


@pytest.mark.parametrize("fails", [False, True])
def test_only_a_failure_restores_the_quantizers(fails):
    compressor = attached()
    quantizer = compressor.attachment.quantizers["stem.weight"]
    quantizer.set_range(1.0)
    try:
        with quantizers_restored_on_failure(compressor.attachment):
            quantizer.set_range(4.0)
            if fails:
                raise KeyboardInterrupt
    except KeyboardInterrupt:
        pass
    assert quantizer.beta.item() == pytest.approx(1.0 if fails else 4.0)


def test_a_reset_opens_gates_and_undoes_only_the_ranges_of_a_sweep():
    attachment = attached().attachment
    quantizer = attachment.quantizers["stem.weight"]
    quantizer.set_range(1.0)
    before = reset_for_sweep(attachment)
    with torch.no_grad():
        quantizer.gates.logits.fill_(-5.0)
    quantizer.set_range(3.0)
    remember_sweep(attachment, before)
    reset_for_sweep(attachment)
    assert quantizer.beta.item() == pytest.approx(1.0)  # the sweep is undone
    assert torch.all(quantizer.gates.logits == INITIAL_LOGIT)
    quantizer.set_range(3.0)
    forget_sweep(attachment)
    reset_for_sweep(attachment)
    assert quantizer.beta.item() == pytest.approx(3.0)  # nobody remembers a sweep
    remember_sweep(attachment, before)
    quantizer.set_range(5.0)
    reset_for_sweep(attachment)
    assert quantizer.beta.item() == pytest.approx(5.0)  # set after the sweep


def test_a_sweep_is_undone_at_both_ends_of_a_range():
    attachment = attached().attachment
    quantizer = attachment.quantizers["stem.input"]
    quantizer.set_range(1.0, alpha=-0.25)
    before = reset_for_sweep(attachment)
    quantizer.set_range(1.0, alpha=-0.75)
    remember_sweep(attachment, before)
    reset_for_sweep(attachment)
    assert quantizer.alpha.item() == pytest.approx(-0.25)
    remember_sweep(attachment, before)
    quantizer.set_range(1.0, signed=False)
    reset_for_sweep(attachment)
    assert quantizer.kind == "unsigned"  # set after the sweep
