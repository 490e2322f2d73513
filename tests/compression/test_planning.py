"""The decision as a plan, and a plan as the final decision: all of it, or an error and no change."""

import copy

import pytest
import torch
from torch import nn

import bayesbits as bb
from bayesbits.zoo import models
from bayesbits.zoo.models import CifarResNet
from tests.compression.networks import loss_of
from tests.graph.heads import heads, inputs
from tests.networks import dropping


def test_fix_is_final_and_fine_tuning_still_learns_weights_and_ranges():
    model, x = models.create("vgg7"), torch.randn(4, 3, 32, 32)
    compressor = bb.attach(model, x, bb.Spec.paper())
    compressor.calibrate([x])
    plan = dropping(compressor.topology, 0.3, bits=4)
    compressor.fix(plan)
    assert compressor.plan() == plan
    assert [group["name"] for group in compressor.parameter_groups()] == ["weights", "ranges"]
    model.train()
    assert torch.equal(
        compressor.attachment.quantizers["features.3.weight"](x),
        compressor.attachment.quantizers["features.3.weight"](x),
    )
    loss_of(model, x).backward()
    assert all(p.grad is not None for group in compressor.parameter_groups() for p in group["params"])
    layer = compressor.topology.layers[1]
    dropped = sorted(set(range(len(layer.out_channels))) - set(plan.kept[layer.name]))
    seen = []
    model.get_submodule(layer.norm).register_forward_hook(lambda m, i, o: seen.append(o))
    model.eval()(x)
    assert not seen[0][:, dropped].any()


def test_a_plan_that_does_not_fit_is_refused_by_name():
    x = torch.randn(1, 1, 28, 28)
    compressor = bb.attach(models.create("lenet5"), x, bb.Spec(input_bits=32, prune=False))
    with pytest.raises(ValueError, match=r"features\.0\.input 8 bits, but it was left in float.*baselines\.uniform"):
        compressor.fix(bb.Plan.uniform(compressor.topology))
    assert bb.baselines.uniform(compressor, [x]).bits["features.0.input"] == 32  # the way out
    with pytest.raises(ValueError, match="was not to be pruned"):
        compressor.fix(bb.Plan(compressor.plan().bits, dropping(compressor.topology, 0.5).kept))
    ternary = bb.attach(models.create("lenet5"), x, bb.Spec(method="twn"))
    with pytest.raises(ValueError, match=r"left in float when attaching: give it 32$"):  # uniform is for gates
        ternary.fix(bb.Plan.uniform(ternary.topology, weights=2))
    other = bb.attach(models.create("vgg7"), torch.randn(1, 3, 32, 32))
    with pytest.raises(ValueError, match=r"no width for the tensor 'features"):
        other.fix(compressor.plan())


@pytest.mark.parametrize("residual_bits", [8, None])
def test_a_uniform_plan_gives_every_quantizer_its_width(residual_bits):
    """Operands of additions have a quantizer where the spec asks for it, and the plan does not have to know."""
    x = torch.randn(2, 3, 8, 8)
    compressor = bb.attach(CifarResNet(8), x, bb.Spec(bits=(4, 8), residual_bits=residual_bits))
    compressor.calibrate([x])
    compressor.fix(bb.Plan.uniform(compressor.topology, 4, 4))
    widths = {name: quantizer.fixed_bits for name, quantizer in compressor.attachment.quantizers.items()}
    operands = compressor.topology.operand_tensors
    assert {name: width for name, width in widths.items() if name in operands} == (
        dict.fromkeys(operands, 8) if residual_bits else {}
    )
    assert {width for name, width in widths.items() if name not in (*operands, "conv1.input")} == {4}
    assert compressor.plan().bits == widths
    compressor.fix(bb.Plan.uniform(compressor.topology, 4, 4, residual_bits=None))
    assert not operands.keys() & compressor.plan().bits.keys()


def test_a_network_never_loses_all_channels_and_backends_get_their_multiples():
    x = torch.randn(2, 1, 28, 28)
    for spec, least in ((bb.Spec(), 1), (bb.Spec.for_backend("onnxruntime"), 8)):
        compressor = bb.attach(models.create("lenet5"), x, spec)
        with torch.no_grad():
            for gate in compressor.attachment.channel_gates.values():
                gate.gates.logits.fill_(-6.0)
                gate.gates.logits[5] = -5.0
        plan = compressor.plan()
        assert all(len(kept) == least and 5 in kept for kept in plan.kept.values())
        plan.check(compressor.topology)


def test_as_many_channels_stay_as_a_rule_says():
    rules = {"*": {"min_channels": 10}, "classifier.1": {"min_channels": 3, "bits": 8}, "features.0": {"min_bits": 4}}
    compressor = bb.attach(models.create("lenet5"), torch.zeros(1, 1, 28, 28), bb.Spec(rules=rules))
    with torch.no_grad():
        for gate in compressor.attachment.channel_gates.values():
            gate.gates.logits.fill_(-6.0)
            gate.gates.logits[20:26] = -5.0
    kept = compressor.plan().kept
    assert {name: len(own) for name, own in kept.items()} == {"features.0": 10, "features.3": 10, "classifier.1": 3}
    assert set(range(20, 26)) < set(kept["features.0"])
    all_of_them = bb.Spec(rules={"features.0": {"min_channels": 1000}})
    compressor = bb.attach(models.create("lenet5"), torch.zeros(1, 1, 28, 28), all_of_them)
    compressor.attachment.channel_gates["features.0"].gates.logits.data.fill_(-6.0)
    assert "features.0" not in compressor.plan().kept


def test_a_vanished_residual_branch_has_no_bits():
    model, x = CifarResNet(8), torch.randn(2, 3, 32, 32)
    compressor = bb.attach(model, x)
    compressor.calibrate([x])
    with torch.no_grad():
        compressor.attachment.channel_gates["layer1.0.conv2"].gates.logits.fill_(-6.0)
    plan = compressor.plan()
    assert plan.kept["layer1.0.conv2"] == ()
    assert plan.bits["layer1.0.conv2.weight"] == 0
    compressor.fix(plan)
    assert model.eval()(x).isfinite().all()


def test_fixing_changes_all_or_nothing():
    model, x = models.create("lenet5"), torch.randn(2, 1, 28, 28)
    compressor = bb.attach(model, x)
    compressor.calibrate([x])
    last = list(compressor.attachment.quantizers)[-1]
    nn.init.constant_(compressor.attachment.quantizers[last].log_beta, float("nan"))
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match=f"{last}: a range must be a number"):
        compressor.fix()
    assert str(before) == str(model.state_dict())
    assert all(q.mode == "learning" or q.bits == (8,) for q in compressor.attachment.quantizers.values())


def test_a_plan_with_other_widths_at_run_time_is_refused_before_anything_is_fixed():
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2))
    compressor = bb.attach(model, torch.zeros(2, 4), bb.Spec.for_backend("onnxruntime", activations="dynamic"))
    with pytest.raises(ValueError, match=r"2.input is quantized at run time.*cannot have 4"):
        compressor.fix(bb.Plan.uniform(compressor.topology, 4, 4))
    assert all(compressor.attachment.quantizers[name].mode == "learning" for name in ("0.weight", "2.weight"))
    bits = bb.Plan.uniform(compressor.topology, 4, 8).bits
    compressor.fix(bb.Plan(bits | {"2.input": 32}))
    assert compressor.plan().bits["2.input"] == 32


def with_heads(**options):
    compressor = bb.attach(heads(keys=4), inputs(), bb.Spec(bits=(4, 8), **options))
    compressor.calibrate([inputs()])
    return compressor, compressor.attachment.channel_gates["value"].gates.logits


def test_one_gate_decides_about_a_head():
    compressor, logits = with_heads()
    assert set(compressor.attachment.channel_gates) == {"value"}
    assert logits.shape == (4,)
    with torch.no_grad():
        logits.copy_(torch.tensor([6.0, -6.0, 6.0, -6.0]))
    plan = compressor.plan()
    assert plan.kept == {"value": (0, 1, 2, 3, 8, 9, 10, 11)}
    compressor.fix()
    assert compressor.plan() == plan
    assert compressor.cost().layers[0].kept_out == compressor.cost().layers[3].kept_in == 8
    weights = [compressor.model.get_submodule(name).quantized(inputs(), *parameters(compressor, name))[1:]
               for name in ("query", "key", "value")]  # fmt: skip
    for weight, bias in weights:
        assert (weight != 0).any(dim=1).tolist() == ([True] * 4 + [False] * 4) * 2
        assert not bias[4:8].any()


def parameters(compressor, name):
    layer = compressor.model.get_submodule(name)
    return layer.weight, layer.bias


@pytest.mark.parametrize(("options", "left"), [({}, 1), ({"channel_multiple": 8}, 2), ({"channel_multiple": 2}, 1)])
def test_heads_stay_in_multiples_of_channels(options, left):
    compressor, logits = with_heads(**options)
    with torch.no_grad():
        logits.copy_(torch.tensor([-9.0, -8.0, -6.0, -7.0]))
    assert len(compressor.plan().kept["value"]) == 4 * left


def test_rules_of_any_projection_keep_the_heads():
    for name in ("query", "key", "value"):
        compressor = bb.attach(heads(), inputs(), bb.Spec(rules={name: {"prune": False}}))
        assert not compressor.attachment.channel_gates
    compressor = bb.attach(heads(), inputs(), bb.Spec(rules={"value": {"min_channels": 9}}))
    with torch.no_grad():
        compressor.attachment.channel_gates["value"].gates.logits.fill_(-6.0)
    assert len(compressor.plan().kept["value"]) == 12
