"""What is attached: gates mask what deployment deletes, everything moves and is saved with the network, and a replaced
module is noticed."""

import copy
import io

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import bayesbits as bb
from bayesbits.zoo import models
from bayesbits.zoo.models import CifarResNet
from tests.compression.networks import FLOAT, Watch, make, output_of
from tests.graph.networks import OWN, TRANSFORMERS


@pytest.mark.parametrize("name", ["lenet5", "resnet8", "mobilenetv2", *OWN, *TRANSFORMERS])
def test_masking_by_gates_equals_deleting_what_the_channel_does(name):
    """For every removable group: gates shut, against the float network with those channels cut from every consumer."""
    model, inputs = make(name)
    model.eval()
    compressor = bb.attach(model, inputs, FLOAT)
    compressor.calibrate([inputs])
    topology, gates = compressor.topology, compressor.attachment.channel_gates
    for group in topology.removable_groups:
        shut = {group.channels[0], group.channels[-1]} if group.size > 1 else set()
        masks = {}
        for layer in topology.layers:
            if layer.name in gates:
                masks[layer.name] = [channel not in shut for channel in layer.out_channels]
                gates[layer.name].fix(masks[layer.name])
        masked = output_of(model, inputs)
        deleted = copy.deepcopy(model)
        for gate in bb.Compressor(deleted).attachment.channel_gates.values():
            gate.fix([True] * gate.channels)
        for layer in topology.layers:  # what a consumer does not read any more might as well be gone
            columns = torch.tensor([channel in shut for channel in layer.in_channels])
            if columns.any():
                module = deleted.get_submodule(layer.name)
                axis = 0 if layer.depthwise or layer.kind == "conv_transpose" else 1
                with torch.no_grad():
                    module.weight.movedim(axis, 0)[columns] = 0
                    if layer.depthwise:
                        norm = deleted.get_submodule(layer.norm) if layer.norm else module
                        for parameter in (norm.weight, norm.bias):
                            if parameter is not None:
                                parameter[columns] = 0
        torch.testing.assert_close(masked, output_of(deleted, inputs), rtol=1e-4, atol=1e-4)


def test_quantizer_state_survives_a_file():
    x = torch.randn(2, 3, 32, 32)
    one, two = CifarResNet(8), CifarResNet(8)
    compressor, other = bb.attach(one, x), bb.attach(two, x)
    compressor.calibrate([x])
    compressor.fix(bb.Plan.uniform(compressor.topology, 4, 8, residual_bits=8))
    file = io.BytesIO()
    torch.save(one.state_dict(), file)
    file.seek(0)
    two.load_state_dict(torch.load(file, weights_only=True), strict=True)
    assert other.plan() == compressor.plan()
    assert torch.equal(one.eval()(x), two.eval()(x))


def test_channels_that_cannot_be_removed_stay_open_and_cost_no_penalty():
    compressor = bb.attach(models.create("lenet5"), torch.randn(1, 1, 28, 28))
    gate = compressor.attachment.channel_gates["features.0"]
    gate.may_close[0], gate.all_may_close = False, False
    with torch.no_grad():
        gate.gates.logits.fill_(-6.0)
    compressor.penalty().backward()
    assert gate.gates.logits.grad[0] == 0
    assert (gate.gates.logits.grad[1:] > 0).all()
    assert gate.eval().values().tolist() == [1.0] + [0.0] * 31
    assert compressor.plan().kept["features.0"] == (0,)


def test_an_exchanged_or_deleted_module_is_noticed_until_it_is_back():
    model, x = CifarResNet(8), torch.randn(2, 3, 32, 32)
    compressor = bb.attach(model, x)
    block, norm = model.layer1[0], model.layer1[0].bn2
    block.bn2 = nn.BatchNorm2d(16)
    with pytest.raises(ValueError, match=r"layer1\.0\.bn2 was replaced"):
        compressor.plan()
    block.bn2 = norm
    compressor.plan()
    model.linear = nn.Identity()
    with pytest.raises(ValueError, match="linear was replaced"):
        compressor.cost()
    del model.linear
    with pytest.raises(ValueError, match="linear was replaced"):
        compressor.parameter_groups()


def test_skipping_a_depthwise_layer_keeps_the_channels_that_it_filters():
    create, inputs = OWN["depthwise"]
    plain = bb.attach(create(), inputs)
    depthwise = next(layer for layer in plain.topology.layers if layer.depthwise)
    producers = [
        name
        for name in plain.attachment.channel_gates
        if name in plain.topology.group_of(depthwise.out_channels[0]).producers
    ]
    assert producers
    skipping = bb.attach(create(), inputs, bb.Spec(rules={depthwise.name: {"skip": True}}))
    assert not set(producers) & set(skipping.attachment.channel_gates)


def test_a_replaced_module_is_noticed():
    x = torch.randn(4, 3, 8, 8)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 4))
    compressor = bb.attach(model, x)
    model[1] = nn.BatchNorm2d(8)
    uses = (compressor.fix, compressor.plan, compressor.cost, compressor.parameter_groups)
    for use in uses:  # all of them before training, so that no work is lost
        with pytest.raises(ValueError, match="1 was replaced after attaching"):
            use()
    with pytest.raises(ValueError, match="1 was replaced after attaching"):
        bb.search(compressor, [(x, torch.zeros(4, dtype=torch.long))], cross_entropy, bb.SearchConfig(epochs=1))
    model[4] = nn.Linear(8 * 36, 2)
    with pytest.raises(ValueError, match="was replaced after attaching"):
        compressor.calibrate([x])


def test_a_replaced_instance_norm_is_noticed_where_it_has_a_gate():
    x = torch.randn(4, 3, 8, 8)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.InstanceNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3))
    compressor = bb.attach(model, x)
    model[1] = nn.InstanceNorm2d(8)
    with pytest.raises(ValueError, match="1 was replaced after attaching"):
        compressor.plan()
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.InstanceNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3))
    compressor = bb.attach(model, x, bb.Spec(prune=False))
    model[1] = nn.InstanceNorm2d(8)
    compressor.plan()


@pytest.mark.parametrize("name", ["vgg7", "resnet8", "mobilenetv2", "depthwise"])
@pytest.mark.parametrize("penalty", ["paper", "expected_bops"])
def test_everything_moves_to_another_device_with_the_network(name, penalty):
    """The meta device computes nothing, but refuses to mix with tensors that were left behind on the CPU."""
    model, inputs = make(name)
    compressor = bb.attach(model, inputs, bb.Spec(penalty=penalty))
    compressor.calibrate([inputs])
    model.to("meta")
    moved = inputs.to("meta")
    with Watch() as watch:
        (model(moved).sum() + compressor.penalty() + compressor.expected_relative_bops()).backward()
    learning = [p for group in compressor.parameter_groups() for p in group["params"] if p.requires_grad]
    assert all(p.grad is not None for p in learning)
    assert not watch.on_cpu  # nothing is copied to or from the host, which on a GPU would wait for it
    assert "convolution_backward" in watch.names


@pytest.mark.parametrize("input_bits", [8, "learned"])
def test_the_range_of_the_input_learns_only_with_its_width(input_bits):
    model, x = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)), torch.randn(8, 4)
    compressor = bb.attach(model, x, bb.Spec(input_bits=input_bits))
    compressor.calibrate([x])
    quantizer = compressor.attachment.quantizers["0.input"]
    (ranges,) = [group["params"] for group in compressor.parameter_groups() if group["name"] == "ranges"]
    learns = any(parameter is quantizer.log_beta for parameter in ranges)
    assert learns == quantizer.log_beta.requires_grad == (input_bits == "learned")
    compressor.fix()
    assert quantizer.log_beta.requires_grad == learns  # fine-tuning would pay for the gradient just the same


def test_notes_go_with_copies_of_the_network_and_not_with_its_state():
    model, x = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)), torch.randn(8, 4)
    compressor = bb.attach(model, x)
    compressor.attachment.notes["mine"] = torch.ones(2)
    assert torch.equal(bb.Compressor(model).attachment.notes["mine"], torch.ones(2))
    copied = bb.Compressor(copy.deepcopy(model)).attachment
    copied.notes["mine"].zero_()
    assert compressor.attachment.notes["mine"].sum() == 2
    assert not any("mine" in key for key in model.state_dict())
    compressor.detach()
    assert bb.attach(model, x).attachment.notes == {}


def test_an_optimizer_made_before_calibration_knows_the_ends_that_calibration_adds():
    """An activation is unsigned until data are seen: what a checkpoint holds must not depend on when that was."""
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.SiLU(), nn.Linear(4, 2))
    x = torch.randn(64, 4)
    compressor = bb.attach(model, x)
    quantizer = compressor.attachment.quantizers["4.input"]
    quantizer.set_range(1.0, signed=False)
    optimizer = torch.optim.Adam(compressor.parameter_groups(), lr=0.1)
    before = [[id(p) for p in group["params"]] for group in optimizer.param_groups]
    compressor.calibrate([x])
    assert [q.kind for q in (compressor.attachment.quantizers["2.input"], quantizer)] == ["unsigned", "asymmetric"]
    assert [[id(p) for p in group["params"]] for group in compressor.parameter_groups()] == before
    quantizer.set_range(1.0, alpha=-0.1)  # values beyond both ends have gradients
    alpha = quantizer.alpha.item()
    model(x).square().sum().backward()
    optimizer.step()
    assert quantizer.alpha.item() != alpha
    quantizer.log_beta.requires_grad_(False)
    quantizer.set_range(1.0, signed=False)
    with pytest.warns(UserWarning, match="1 of 5 ranges were frozen"):
        ranges = [id(p) for p in compressor.parameter_groups()[-1]["params"]]
    assert ranges == [p for p in before[-1] if p not in (id(quantizer.log_beta), id(quantizer.log_alpha))]
