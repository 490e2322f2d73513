"""Attaching to any network: nothing changes but what was asked for, and what cannot be attached is left as it was."""

import copy
import io
import threading
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bayesbits as bb
from bayesbits.nn.layer import AttachedLayer
from bayesbits.zoo import models
from bayesbits.zoo.models import CifarResNet
from tests.compression.networks import FLOAT, ZOO, loss_of, make, output_of, short_mobilenetv2
from tests.graph.attention import attention, examples
from tests.graph.networks import OWN, TRANSFORMERS, Tied, randomize


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


def test_names_of_the_float_network_stay_and_its_checkpoints_load_strictly_before_and_after():
    model = CifarResNet(8)
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


def test_isinstance_deepcopy_and_save_keep_working():
    model, x = short_mobilenetv2(), torch.randn(2, 3, 32, 32)
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


def test_attaching_twice_or_over_a_name_is_refused():
    model, x = models.create("lenet5"), torch.randn(1, 1, 28, 28)
    bb.attach(model, x)
    with pytest.raises(ValueError, match="attached already"):
        bb.attach(model, x)
    with pytest.raises(ValueError, match="no quantizers attached"):
        bb.Compressor(models.create("lenet5"))


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
    model, x = CifarResNet(8), torch.randn(2, 3, 32, 32)
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
    learned = bb.attach(CifarResNet(8), x, bb.Spec(residual_bits="learned"))
    assert learned.attachment.quantizers[operands[0]].mode == "learning"


def test_per_channel_weights():
    model, x = models.create("vgg7"), torch.randn(2, 3, 32, 32)
    compressor = bb.attach(model, x, bb.Spec(per_channel_weights=True))
    compressor.calibrate([x])
    assert compressor.attachment.quantizers["features.0.weight"].log_beta.shape == (128,)
    loss_of(model, x).backward()


def test_activations_alone_are_asymmetric_and_states_of_symmetric_ones_load():
    torch.manual_seed(0)
    # The input, at 8 bits, is what differs most; far more of its values lie above zero than below.
    model, x = nn.Sequential(nn.Linear(8, 16), nn.SiLU(), nn.Linear(16, 4)).eval(), torch.randn(500, 8) + 2
    float_network = copy.deepcopy(model)
    symmetric = bb.attach(copy.deepcopy(model), x, bb.Spec(asymmetric_activations=False))
    symmetric.calibrate([x])
    compressor = bb.attach(model, x)
    compressor.calibrate([x])
    kinds = {name: quantizer.kind for name, quantizer in compressor.attachment.quantizers.items()}
    inputs, weights = dict.fromkeys(("0.input", "2.input"), "asymmetric"), ("0.weight", "2.weight")
    assert kinds == inputs | dict.fromkeys(weights, "symmetric")
    error = (model(x) - float_network(x)).abs().mean()
    model.load_state_dict(symmetric.model.state_dict())
    assert {quantizer.kind for quantizer in compressor.attachment.quantizers.values()} == {"symmetric"}
    assert torch.equal(model(x), symmetric.model.eval()(x))
    assert error < (model(x) - float_network(x)).abs().mean()
    assert not any("log_alpha" in name for name in symmetric.model.state_dict())


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


def test_a_root_that_cannot_be_exchanged_is_left_as_it_was():
    class Final(nn.Sequential):
        def __init_subclass__(cls) -> None:
            raise TypeError("no subclasses")

    model = Final(nn.Linear(4, 4))
    before = dict(vars(model))
    with pytest.raises(TypeError, match="no subclasses"):
        bb.attach(model, torch.zeros(1, 4))
    assert vars(model) == before
    assert type(model[0]) is nn.Linear


class OwnForward(nn.GRU):
    """Its forward is not that of torch, so that it stays in float."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return super().forward(x)


class Recurrent(nn.Module):
    """A recurrent layer that stays in float, in front of a linear layer."""

    def __init__(self, hidden: int, outputs: int) -> None:
        super().__init__()
        self.cell, self.head = OwnForward(4, hidden, batch_first=True), nn.Linear(hidden, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cell(x)[0])


def test_a_warning_names_the_largest_parts_that_stay_in_float():
    x = torch.randn(2, 3, 4)
    with pytest.warns(UserWarning, match=r"48\.4% of the MACs stay in float .*: cell \(GRU, 48\.4%\)") as warned:
        compressor = bb.attach(Recurrent(16, 64), x)
    assert warned[0].filename == __file__
    assert [(entry.name, entry.what) for entry in compressor.topology.unsupported] == [("cell", "GRU")]


def test_a_small_part_in_float_is_listed_without_a_warning():
    x = torch.randn(2, 3, 4)
    topology = bb.attach(Recurrent(1, 300), x).topology
    assert sum(entry.macs for entry in topology.unsupported) == 2 * 3 * 15 < 0.05 * topology.macs


def test_networks_without_ranges_to_take_from_data_need_no_calibration() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2))
    compressor = bb.attach(model, torch.zeros(2, 4), bb.Spec.for_backend("onnxruntime", activations="dynamic"))
    x = torch.randn(3, 4, requires_grad=True)
    (model(x).square().sum() + compressor.penalty()).backward()
    assert x.grad is not None
    assert model[0].weight.grad is not None
    assert {group["name"] for group in compressor.parameter_groups()} == {"weights", "gates", "ranges"}
    assert compressor.plan().bits["0.input"] == compressor.plan().bits["2.input"] == 8
    assert compressor.cost().layers[0].activation_bits == 8
    compressor.calibrate([])  # weights alone
    image = bb.attach(nn.Conv2d(3, 4, 1), torch.zeros(2, 3, 4, 4), bb.Spec(activations="dynamic"))
    with pytest.raises(RuntimeError, match="are not known yet"):
        image.model(torch.zeros(2, 3, 4, 4))


def test_the_warning_names_the_option_for_products_of_attention():
    with pytest.warns(UserWarning, match=r"attention product.*Spec\(activation_products=True\) quantizes products"):
        bb.attach(attention("matmul"), examples())
    bb.attach(attention("matmul"), examples(), bb.Spec(activation_products=True))
    with pytest.warns(UserWarning, match="lists all of them with the reasons$"):  # it would be refused there
        bb.attach(attention("matmul"), examples(), bb.Spec(activations="float"))
