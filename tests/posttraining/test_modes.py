"""A live network is put into a mode and comes back as it was, after errors too."""

import pytest
import torch

import bayesbits as bb
from bayesbits.posttraining.modes import in_float, kept, learning
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


@pytest.mark.parametrize("mode", [kept, in_float])
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
    with learning(compressor, ("gates",)) as groups:
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
        learning(compressor, ("gates",)),
    ):
        pass
