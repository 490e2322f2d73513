"""Attaching to any network, and what the handle does: the promises of two lines in a user's own loop."""

import copy
import io
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import bayesbits as bb
from bayesbits.functional import implementation
from bayesbits.nn.layer import AttachedLayer
from bayesbits.zoo import models
from tests.graph.networks import OWN, TRANSFORMERS, Tied, randomize, transformer
from tests.networks import dropping

FLOAT = bb.Spec(input_bits=32, residual_bits=None)

ZOO: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "lenet5": (lambda: models.create("lenet5"), (4, 1, 28, 28)),
    "vgg7": (lambda: models.create("vgg7"), (4, 3, 32, 32)),
    "resnet18": (lambda: models.create("resnet18", num_classes=10), (4, 3, 48, 48)),
    "resnet50": (lambda: models.create("resnet50", num_classes=10), (8, 3, 64, 64)),
    "mobilenetv2": (lambda: models.create("mobilenetv2", num_classes=10, width=0.35), (8, 3, 64, 64)),
    "resnet20": (lambda: models.create("resnet20"), (4, 3, 32, 32)),
}


def make(name: str) -> tuple[nn.Module, Any]:
    """A network with weights under which its activations are of ordinary size, and inputs for it."""
    torch.manual_seed(0)
    if name in ZOO:
        create, shape = ZOO[name]
        return create(), torch.randn(shape)
    if name in TRANSFORMERS:
        model, inputs = transformer(name)
        # Several images: batch norm in training magnifies rounding where a channel has few values.
        several = {key: torch.cat([x, x.flip(-1), x.flip(-2), -x, x**2, x.abs()]) for key, x in inputs.items()}
        return randomize(model), several if "pixel_values" in inputs else inputs
    create, inputs = OWN[name]
    fresh = tuple(torch.randn_like(i) for i in inputs) if isinstance(inputs, tuple) else torch.randn_like(inputs)
    return randomize(create()), fresh


def output_of(model: nn.Module, inputs: Any) -> Tensor:
    if isinstance(inputs, dict):
        output = model(**inputs)
        return output.logits if hasattr(output, "logits") else output[0]
    return model(*inputs) if isinstance(inputs, tuple) else model(inputs)


def loss_of(model: nn.Module, inputs: Any) -> Tensor:
    return (output_of(model, inputs).float() ** 2).mean()


def doubled(inputs: Any) -> Any:
    """Inputs in double precision."""
    if isinstance(inputs, dict):
        return {key: doubled(value) for key, value in inputs.items()}
    if isinstance(inputs, tuple):
        return tuple(doubled(value) for value in inputs)
    return inputs.double() if inputs.is_floating_point() else inputs


def without_dropout(model: nn.Module) -> nn.Module:
    """Dropout draws other noise in a second pass, which is nothing that attaching could change."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return model


@pytest.mark.parametrize("name", [*ZOO, *OWN, *TRANSFORMERS])
def test_with_gates_open_and_ranges_from_the_same_batch_nothing_changes(name):
    # In double precision: batch norm in training magnifies what single precision rounds, in any network.
    model, inputs = make(name)
    model, inputs = without_dropout(model).double(), doubled(inputs)
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.reset_running_stats()
    reference = copy.deepcopy(model)
    compressor = bb.attach(model, inputs, FLOAT)
    for member in compressor.attachment.bank.members:
        nn.init.constant_(member.logits, 60.0)  # forced open: in training, gates at their start are shut now and then
    for training in (True, False):
        # Batch norms that have never run take part with the batch's statistics, as in training; later with their own.
        compressor.calibrate([inputs])
        reference.load_state_dict({key: v for key, v in model.state_dict().items() if not key.startswith("bayesbits.")})
        expected = output_of(reference.train(training), inputs)
        actual = output_of(model.train(training), inputs)
        assert expected.any()
        assert ((actual - expected).norm() / expected.norm()).item() < 1e-5


@pytest.mark.parametrize("name", ["lenet5", "vgg7", "resnet20", "mobilenetv2", *OWN, *TRANSFORMERS])
def test_a_few_steps_move_gates_and_ranges_and_a_strong_penalty_changes_the_plan(name):
    model, inputs = make(name)
    compressor = bb.attach(model, inputs)
    compressor.calibrate([inputs])
    before, plan = copy.deepcopy(model.state_dict()), compressor.plan()
    groups = {group.pop("name"): group for group in compressor.parameter_groups()}
    optimizer = torch.optim.Adam(
        [groups["weights"] | {"lr": 1e-3}, groups["gates"] | {"lr": 1.0}, groups["ranges"] | {"lr": 1e-2}]
    )
    model.train()
    for _ in range(9):  # gates go from a logit of 6 to about -3
        optimizer.zero_grad()
        loss = loss_of(model, inputs) + 10.0 * compressor.penalty()
        loss.backward()
        optimizer.step()
        assert loss.isfinite()
    after = model.state_dict()
    assert any(not torch.equal(before[key], after[key]) for key in after if key.endswith("logits"))
    assert any(not torch.equal(before[key], after[key]) for key in after if key.endswith("log_beta"))
    assert compressor.plan() != plan
    assert compressor.cost().relative_bops < compressor.cost(plan).relative_bops
    assert output_of(model.eval(), inputs).isfinite().all()


class Twins(nn.Module):
    """Two layers of equal MACs side by side; only one of them drives the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.sensitive, self.idle = nn.Linear(16, 16), nn.Linear(16, 16)
        self.head = nn.Linear(16, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.sensitive(x)) + 1e-3 * torch.tanh(self.idle(x)))


def test_bits_follow_the_task_and_not_the_penalty_alone():
    torch.manual_seed(0)
    model, x = Twins(), torch.randn(256, 16)
    target = Twins()(x).detach() * 3
    compressor = bb.attach(model, x, bb.Spec(prune=False, residual_bits=None))
    compressor.calibrate([x])
    gates = [q.gates.logits for q in compressor.attachment.quantizers.values() if q.mode == "learning"]
    optimizer = torch.optim.Adam(
        [{"params": gates, "lr": 0.1}, {"params": compressor.parameter_groups()[0]["params"], "lr": 1e-3}]
    )
    for _ in range(400):
        optimizer.zero_grad()
        (((model(x) - target) ** 2).mean() + 1e-3 * compressor.penalty()).backward()
        optimizer.step()
    bits = compressor.plan().bits
    assert bits["sensitive.weight"] > bits["idle.weight"]


@pytest.mark.parametrize("name", ["lenet5", "resnet20", "mobilenetv2", *OWN, *TRANSFORMERS])
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
            gate.fix([True] * gate.gates.logits.numel())
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


def test_dropping_a_third_lowers_the_macs_to_the_figure_by_hand():
    model = models.create("lenet5")
    compressor = bb.attach(model, torch.randn(1, 1, 28, 28))
    plan = dropping(compressor.topology, 0.25)
    c1, c2, hidden = 24, 48, 384
    by_hand = 24 * 24 * 25 * c1 + 8 * 8 * 25 * c1 * c2 + 16 * c2 * hidden + hidden * 10
    assert compressor.cost(plan).macs == by_hand


def test_eight_bits_everywhere_cost_exactly_a_sixteenth():
    compressor = bb.attach(models.create("lenet5"), torch.randn(1, 1, 28, 28))
    assert compressor.cost(bb.Plan.uniform(compressor.topology, weights=8, activations=8)).relative_bops == 6.25


@pytest.mark.parametrize("name", ["lenet5", "resnet20", "mobilenetv2", "depthwise", "residual"])
def test_expected_and_counted_cost_agree_where_gates_are_decided(name):
    model, inputs = make(name)
    compressor = bb.attach(model, inputs)
    torch.manual_seed(1)
    with torch.no_grad():
        for quantizer in compressor.attachment.quantizers.values():
            quantizer.gates.logits.copy_(torch.where(torch.rand_like(quantizer.gates.logits) < 0.7, 60.0, -60.0))
        for gate in compressor.attachment.channel_gates.values():
            gate.gates.logits.copy_(torch.where(torch.rand_like(gate.gates.logits) < 0.8, 60.0, -60.0))
    assert compressor.expected_relative_bops().item() == pytest.approx(compressor.cost().relative_bops, rel=1e-6)


def test_names_of_the_float_network_stay_and_its_checkpoints_load_strictly_before_and_after():
    model = models.create("resnet20")
    keys, checkpoint = list(model.state_dict()), copy.deepcopy(model.state_dict())
    compressor = bb.attach(model, torch.randn(1, 3, 32, 32))
    assert [key for key in model.state_dict() if not key.startswith("bayesbits.")] == keys
    assert {name for name, _ in model.named_parameters() if not name.startswith("bayesbits.")} <= set(keys)
    compressor.calibrate([torch.randn(2, 3, 32, 32)])
    beta = compressor.attachment.quantizers["linear.input"].log_beta.clone()
    model.load_state_dict(checkpoint, strict=True)
    assert torch.equal(compressor.attachment.quantizers["linear.input"].log_beta, beta)
    with pytest.raises(RuntimeError, match="Missing key"):
        model.load_state_dict({key: value for key, value in checkpoint.items() if key != "conv1.weight"}, strict=True)
    assert compressor.detach() is model
    assert list(model.state_dict()) == keys
    model.load_state_dict(checkpoint, strict=True)


def test_quantizer_state_survives_a_file():
    x = torch.randn(2, 3, 32, 32)
    one, two = models.create("resnet20"), models.create("resnet20")
    compressor, other = bb.attach(one, x), bb.attach(two, x)
    compressor.calibrate([x])
    compressor.fix(bb.Plan.uniform(compressor.topology, 4, 8, residual_bits=8))
    file = io.BytesIO()
    torch.save(one.state_dict(), file)
    file.seek(0)
    two.load_state_dict(torch.load(file, weights_only=True), strict=True)
    assert other.plan() == compressor.plan()
    assert torch.equal(one.eval()(x), two.eval()(x))


def test_isinstance_deepcopy_and_save_keep_working():
    model, x = models.create("mobilenetv2", num_classes=10, width=0.35), torch.randn(2, 3, 32, 32)
    compressor = bb.attach(model, x)
    compressor.calibrate([x])
    first = model.get_submodule(compressor.topology.layers[0].name)
    assert isinstance(first, nn.Conv2d)
    assert isinstance(first, AttachedLayer)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    expected = model.eval()(x)
    for other in (copy.deepcopy(model), torch.load(file, weights_only=False)):
        assert torch.equal(other.eval()(x), expected)
        handle = bb.Compressor(other)
        handle.fix(bb.Plan.uniform(handle.topology, 2, 2))
        assert not torch.equal(other(x), expected)
        assert torch.equal(model(x), expected)  # a copy has quantizers of its own
        assert torch.equal(handle.detach()(x), compressor.model(x)) is False


def test_autocast_checkpointing_and_compile_keep_working():
    torch.manual_seed(0)
    x, y = torch.randn(4, 1, 28, 28), torch.randint(10, (4,))
    model = models.create("lenet5")
    compressor = bb.attach(model, x, bb.Spec(bits=(2, 8)))  # few widths are compiled in half the time
    compressor.calibrate([x])
    with torch.autocast("cpu", torch.bfloat16):
        assert model(x).dtype == torch.bfloat16

    def gradients(run: Callable[[Tensor], Tensor]) -> list[Tensor]:
        model.zero_grad()
        compressor.attachment.bank.counter[1] = 5
        (cross_entropy(run(x), y) + compressor.penalty()).backward()
        return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]

    plain = gradients(model)
    checkpointed = gradients(lambda x: torch.utils.checkpoint.checkpoint(model, x, use_reentrant=False))
    compiled = gradients(torch.compile(model, fullgraph=True))
    assert all(torch.equal(a, b) for a, b in zip(plain, checkpointed, strict=True))
    torch.testing.assert_close(compiled, plain, rtol=1e-3, atol=1e-4)


@pytest.mark.usefixtures("process_group")
@pytest.mark.parametrize("fixed", [False, True])
def test_data_parallel_training(fixed):
    x = torch.randn(4, 1, 28, 28)
    model = models.create("lenet5")
    compressor = bb.attach(model, x)
    compressor.calibrate([x])
    if fixed:
        compressor.fix(dropping(compressor.topology, 0.25))
    other = nn.parallel.DistributedDataParallel(copy.deepcopy(model))
    for _ in range(3):  # from the second step on, every gradient that is asked for has to come
        model(x).sum().backward()
        other(x).sum().backward()
    for expected, actual in zip(model.parameters(), other.module.parameters(), strict=True):
        assert (expected.grad is None) == (not expected.requires_grad)
        assert expected.grad is None or torch.allclose(expected.grad, actual.grad, rtol=1e-4)


def test_before_calibration_a_forward_says_what_to_do():
    model, x = models.create("lenet5"), torch.randn(1, 1, 28, 28)
    bb.attach(model, x)
    with pytest.raises(RuntimeError, match=r"call compressor\.calibrate"):
        model(x)


def test_attaching_twice_or_over_a_name_is_refused():
    model, x = models.create("lenet5"), torch.randn(1, 1, 28, 28)
    bb.attach(model, x)
    with pytest.raises(ValueError, match="attached already"):
        bb.attach(model, x)
    with pytest.raises(ValueError, match="no quantizers attached"):
        bb.Compressor(models.create("lenet5"))


def test_a_failed_calibration_changes_nothing():
    model, x = models.create("lenet5"), torch.randn(1, 1, 28, 28)
    compressor = bb.attach(model, x)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match="features"):
        compressor.calibrate([x, x * float("nan")])
    assert str(before) == str(model.state_dict())
    assert not compressor.attachment.calibrated


def test_rules_pin_bits_and_skip_layers():
    model, x = models.create("lenet5"), torch.randn(2, 1, 28, 28)
    layers = ["features.0", "features.3", "classifier.1", "classifier.3"]
    rules = {layers[0]: {"skip": True}, layers[1]: {"bits": 4, "prune": False}, f"{layers[2]}.weight": {"max_bits": 8}}
    compressor = bb.attach(model, x, bb.Spec(rules=rules))
    compressor.calibrate([x])
    quantizers = compressor.attachment.quantizers
    assert type(model.get_submodule(layers[0])) is nn.Conv2d
    assert quantizers[f"{layers[1]}.weight"].fixed_bits == 4
    assert quantizers[f"{layers[2]}.weight"].bits == (2, 4, 8)
    assert set(compressor.attachment.channel_gates) == {layers[2]}
    plan = compressor.plan()
    assert (plan.bits[f"{layers[0]}.weight"], plan.bits[f"{layers[1]}.weight"]) == (32, 4)


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
    with pytest.raises(ValueError, match=r"features\.0\.input 8 bits, but it was left in float"):
        compressor.fix(bb.Plan.uniform(compressor.topology))
    with pytest.raises(ValueError, match="was not to be pruned"):
        compressor.fix(bb.Plan(compressor.plan().bits, dropping(compressor.topology, 0.5).kept))
    other = bb.attach(models.create("vgg7"), torch.randn(1, 3, 32, 32))
    with pytest.raises(ValueError, match=r"no width for the tensor 'features"):
        other.fix(compressor.plan())


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


def test_a_vanished_residual_branch_has_no_bits():
    model, x = models.create("resnet20"), torch.randn(2, 3, 32, 32)
    compressor = bb.attach(model, x)
    compressor.calibrate([x])
    with torch.no_grad():
        compressor.attachment.channel_gates["layer1.0.conv2"].gates.logits.fill_(-6.0)
    plan = compressor.plan()
    assert plan.kept["layer1.0.conv2"] == ()
    assert plan.bits["layer1.0.conv2.weight"] == 0
    compressor.fix(plan)
    assert model.eval()(x).isfinite().all()


def test_tied_weights_share_a_quantizer():
    model = Tied()
    compressor = bb.attach(model, torch.randn(3, 4))
    tied = next(layers for layers in compressor.topology.weight_tensors.values() if len(layers) == 2)
    one, two = (model.get_submodule(name).parts.weight for name in tied)
    assert one is two


def test_a_network_that_cannot_be_exported_is_attached_too():
    from tests.graph.networks import DataDependent

    model, x = randomize(DataDependent()), torch.randn(2, 4)
    with pytest.warns(UserWarning, match="torch.export cannot take it"):
        compressor = bb.attach(model, x)
    assert not compressor.topology.traced
    assert not compressor.attachment.channel_gates
    compressor.calibrate([x])
    loss_of(model, x).backward()
    assert "keeps all" in str(compressor)


def test_residual_operands_are_quantized_to_eight_bits():
    model, x = models.create("resnet20"), torch.randn(2, 3, 32, 32)
    compressor = bb.attach(model, x)
    compressor.calibrate([x])
    operands = [name for name in compressor.attachment.quantizers if name.endswith(".output")]
    assert operands
    seen = {}
    for name in operands:
        module = model.get_submodule(compressor.topology.operand_tensors[name])
        module.register_forward_hook(lambda m, i, o, name=name: seen.__setitem__(name, o))
    model.eval()(x)
    assert all(0 < seen[name].unique().numel() <= 256 for name in operands)
    learned = bb.attach(models.create("resnet20"), x, bb.Spec(residual_bits="learned"))
    assert learned.attachment.quantizers[operands[0]].mode == "learning"


def test_per_channel_weights():
    model, x = models.create("vgg7"), torch.randn(2, 3, 32, 32)
    compressor = bb.attach(model, x, bb.Spec(per_channel_weights=True))
    compressor.calibrate([x])
    assert compressor.attachment.quantizers["features.0.weight"].log_beta.shape == (128,)
    loss_of(model, x).backward()


@pytest.mark.parametrize("penalty", ["paper", "expected_bops"])
def test_penalties_reach_every_gate(penalty):
    compressor = bb.attach(models.create("lenet5"), torch.randn(1, 1, 28, 28), bb.Spec(penalty=penalty))
    compressor.penalty().backward()
    gates = next(group for group in compressor.parameter_groups() if group["name"] == "gates")["params"]
    assert all((gate.grad > 0).all() for gate in gates)


def test_diagnose_speaks_of_every_tensor():
    torch.manual_seed(0)
    model, x = models.create("lenet5"), torch.randn(8, 1, 28, 28)
    compressor = bb.attach(model, x)
    compressor.calibrate([x])
    diagnosis = compressor.diagnose([(x, torch.randint(10, (8,)))], cross_entropy)
    assert {tensor.name for tensor in diagnosis.tensors} == set(compressor.attachment.quantizers)
    assert "classifier.1.weight" in str(diagnosis)


class Watch(TorchDispatchMode):
    """Collects the names of all operations that run, and those that meet a tensor on the CPU."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.on_cpu: set[str] = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.__name__.split(".")[0]
        result = function(*args, **(kwargs or {}))
        self.names.add(name)
        if any(isinstance(t, Tensor) and t.device.type == "cpu" for t in tree_leaves((args, kwargs, result))):
            self.on_cpu.add(name)
        return result


def test_a_training_step_reads_no_value_back_to_the_host():
    """On a GPU each of these operations waits for the device; tests/gpu asks the device itself."""
    x, y = torch.randn(4, 3, 32, 32), torch.randint(10, (4,))
    model = models.create("vgg7")
    compressor = bb.attach(model, x)
    compressor.calibrate([x])
    with implementation("torch"), Watch() as watch:
        (cross_entropy(model(x), y) + 0.01 * compressor.penalty()).backward()
    assert "convolution_backward" in watch.names
    assert not watch.names & {
        "_local_scalar_dense",
        "item",
        "nonzero",
        "masked_select",
        "is_nonzero",
        "equal",
        "unique",
    }


def test_large_networks_are_counted_right():
    resnet = bb.trace(models.create("resnet18").eval(), torch.randn(1, 3, 224, 224))
    mobile = bb.trace(models.create("mobilenetv2").eval(), torch.randn(1, 3, 224, 224))
    assert resnet.macs == 1_814_073_344
    assert mobile.macs == 300_774_272


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


def test_networks_that_walk_over_their_children():
    model, x = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)), torch.randn(5, 8)
    expected = model(x)
    compressor = bb.attach(model, x, FLOAT)
    compressor.calibrate([x])
    assert (len(model), len(list(model)), len(model[1:])) == (3, 3, 2)
    torch.testing.assert_close(model.eval()(x), expected)
    assert bb.Compressor(copy.deepcopy(model)).plan() == compressor.plan()


def test_one_layer_is_a_network_too():
    model, x = nn.Linear(8, 4), torch.randn(5, 8)
    keys = list(model.state_dict())
    compressor = bb.attach(model, x)
    compressor.calibrate([x])
    model(x).sum().backward()
    assert type(compressor.detach()) is nn.Linear
    assert list(model.state_dict()) == keys


def test_what_cannot_be_attached_is_refused_and_left_as_it_was():
    x = torch.randn(1, 1, 28, 28)
    model = models.create("lenet5")
    for wrong, message in ((torch.compile(model), "compile it afterwards"), (lambda x: x, "attached to an nn.Module")):
        with pytest.raises((ValueError, TypeError), match=message):
            bb.attach(wrong, x)
    with pytest.raises(TypeError, match="it is a bayesbits"):
        bb.attach(model, x, {"bits": (2, 4)})
    with torch.no_grad():
        model.features[0].weight[0] = float("nan")
    with pytest.raises(ValueError, match=r"features\.0\.weight"):
        bb.attach(model, x)
    assert type(model.features[0]) is nn.Conv2d
    assert type(model) is models.LeNet5
    part = models.create("lenet5")
    bb.attach(part.features, x)
    with pytest.raises(ValueError, match="a part of it, has quantizers attached already"):
        bb.attach(part, x)


def test_a_handle_after_detaching_says_so():
    compressor = bb.attach(models.create("lenet5"), torch.randn(1, 1, 28, 28))
    compressor.detach()
    for use in (compressor.cost, compressor.penalty, compressor.detach, compressor.plan):
        with pytest.raises(ValueError, match="was detached"):
            use()
    assert repr(compressor) == str(compressor) == "Compressor of a network that was detached"


def test_an_exchanged_or_deleted_module_is_noticed_until_it_is_back():
    model, x = models.create("resnet20"), torch.randn(2, 3, 32, 32)
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


def test_wrong_arguments_are_named():
    compressor = bb.attach(models.create("lenet5"), torch.randn(1, 1, 28, 28))
    with pytest.raises(TypeError, match=r"pass \[batch\]"):
        compressor.calibrate(torch.randn(2, 1, 28, 28))
    with pytest.raises(TypeError, match=r"Plan\.load"):
        compressor.fix("plan.json")
    assert "Compressor of 4 layers" in repr(compressor)


def test_a_network_from_scratch_learns_after_calibration():
    """Ranges must fit what batch norms make of the data in training, not the statistics that they start with."""
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Conv2d(c, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()) for c in (3, 16, 16, 16)]
    model = nn.Sequential(*blocks, nn.Flatten(), nn.Linear(16 * 64, 4))
    x, y = torch.randn(64, 3, 8, 8), torch.randint(4, (64,))
    compressor = bb.attach(model, x)
    compressor.calibrate([x])
    optimizer = torch.optim.Adam(compressor.parameter_groups(), lr=3e-3)
    for _ in range(60):
        optimizer.zero_grad()
        loss = cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.1


class TiedWithNorms(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 3, 1, bias=False), nn.Conv2d(3, 3, 1, bias=False)
        self.b.weight = self.a.weight
        self.first, self.second = nn.BatchNorm2d(3), nn.BatchNorm2d(3)
        nn.init.constant_(self.first.weight, 0.1)
        nn.init.constant_(self.second.weight, 3.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.b(torch.relu(self.first(self.a(x)))))


def test_tied_weights_behind_different_batch_norms_are_not_clipped():
    torch.manual_seed(0)
    model, x = TiedWithNorms(), torch.randn(8, 3, 4, 4)
    model(x)
    expected = model.eval()(x)
    bb.attach(model, x, FLOAT).calibrate([x])
    torch.testing.assert_close(model(x), expected)


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


def test_parts_used_outside_of_a_forward_pass_draw_for_themselves():
    model, x = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)), torch.randn(4, 8)
    compressor = bb.attach(model, x)
    compressor.calibrate([x])
    state = copy.deepcopy(model.state_dict())
    model(x).sum().backward()
    model[0](x).sum().backward()
    compressor.fix()
    model(x).sum().backward()
    model.load_state_dict(state)  # back to searching
    model(x).sum().backward()
    counter = compressor.attachment.bank.counter[1].item()
    model(x).sum().backward()
    assert compressor.attachment.bank.counter[1].item() == counter + 1
    assert compressor.attachment.bank.members


def test_noise_does_not_advance_in_evaluation():
    model, x = models.create("lenet5"), torch.randn(1, 1, 28, 28)
    compressor = bb.attach(model, x)
    compressor.calibrate([x])
    counter = compressor.attachment.bank.counter.clone()
    model.eval()(x)
    assert torch.equal(compressor.attachment.bank.counter, counter)
    model.train()(x)
    assert not torch.equal(compressor.attachment.bank.counter, counter)


def test_the_fused_transformer_layer_cannot_pass_the_quantizers_by():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0.0)
    model, x = nn.Sequential(layer, nn.Linear(16, 4)), torch.randn(2, 5, 16)
    compressor = bb.attach(model, x, bb.Spec.paper())
    compressor.calibrate([x])
    compressor.fix(bb.Plan({**compressor.plan().bits, "0.linear1.weight": 2}))
    model.eval()
    with_gradients = model(x)
    with torch.no_grad():
        torch.testing.assert_close(model(x), with_gradients)
    compressor.detach()
    assert not layer._forward_pre_hooks


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("affine", [True, False])
def test_other_precisions_before_and_after_attaching(dtype, affine):
    x = torch.randn(4, 3, 8, 8)
    for before in (True, False):
        body = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8, affine=affine), nn.ReLU(), nn.Flatten())
        model = nn.Sequential(*body, nn.Linear(8 * 36, 4))
        model = model.to(dtype) if before else model
        compressor = bb.attach(model, x.to(dtype) if before else x)
        penalty = compressor.penalty().item()
        model = model.to(dtype)
        assert compressor.penalty().item() == pytest.approx(penalty, rel=1e-6)
        compressor.calibrate([x.to(dtype)])
        assert compressor.attachment.quantizers["0.weight"].log_beta.dtype == torch.float32
        output = model(x.to(dtype))
        assert output.dtype == dtype
        output.float().sum().backward()


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


class Methods(nn.Module):
    """Layers whose names are methods of dictionaries, and something that only the class itself knows how to copy."""

    def __init__(self) -> None:
        super().__init__()
        self.values, self.keys, self.lock = nn.Linear(8, 8), nn.Linear(8, 4), threading.Lock()

    def forward(self, x: Tensor) -> Tensor:
        return self.keys(torch.relu(self.values(x)))

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "lock"}


def test_any_names_and_classes_with_their_own_way_of_being_copied():
    model, x = Methods(), torch.randn(4, 8)
    compressor = bb.attach(model, x)
    compressor.calibrate([x])
    assert set(compressor.attachment.channel_gates) == {"values"}
    assert torch.equal(copy.deepcopy(model).eval()(x), model.eval()(x))


def test_saving_a_network_of_one_layer_and_a_compiled_one():
    x = torch.randn(4, 8)
    for model in (nn.Linear(8, 4), nn.Sequential(nn.Linear(8, 4))):
        bb.attach(model, x).calibrate([x])
        model.compile(backend="eager")
        file = io.BytesIO()
        torch.save(model, file)
        file.seek(0)
        assert torch.equal(torch.load(file, weights_only=False).eval()(x), model.eval()(x))


def test_transposed_convolutions_have_one_range():
    model, x = (
        nn.Sequential(nn.ConvTranspose2d(4, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 2, 1)),
        torch.randn(2, 4, 5, 5),
    )
    compressor = bb.attach(model, x, bb.Spec(per_channel_weights=True))
    compressor.calibrate([x])
    assert compressor.attachment.quantizers["0.weight"].log_beta.dim() == 0
    assert compressor.attachment.quantizers["3.weight"].log_beta.shape == (2,)
    model(x).sum().backward()


@pytest.mark.parametrize("name", ["vgg7", "resnet20", "mobilenetv2", "depthwise"])
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
    assert all(p.grad is not None for group in compressor.parameter_groups() for p in group["params"])
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
