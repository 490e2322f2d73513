"""Networks of the zoo and of the field: onnxruntime computes the codes of the deployed network, in integer kernels."""

import onnx
import pytest
import torch
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import bayesbits as bb
from bayesbits.zoo.models import VGG7, CifarResNet, LeNet5, MobileNetV2, resnet18, resnet50
from bayesbits.zoo.models.resnet import BasicBlock, ResNet
from tests.compression.networks import narrow, short_mobilenetv2
from tests.deploy.exported import exported
from tests.graph.networks import IMAGES, OWN, transformer
from tests.graph.products import KINDS, Products
from tests.graph.test_random_networks import Random

ZOO = {
    "lenet5": (LeNet5, (1, 28, 28)),
    "cifar_resnet8": (lambda: CifarResNet(8), (3, 16, 16)),
    "short mobilenetv2": (short_mobilenetv2, (3, 32, 32)),
    "narrow vgg7": (lambda: narrow(VGG7()), (3, 32, 32)),
    "small resnet18": (lambda: narrow(ResNet(BasicBlock, (2, 1, 1, 1), 10, "cifar")), (3, 16, 16)),
}
WHOLE = {
    "cifar_resnet20": (lambda: CifarResNet(20), (3, 32, 32)),
    "vgg7": (VGG7, (3, 32, 32)),
    "mobilenetv2": (lambda: MobileNetV2(num_classes=10, width=0.25), (3, 32, 32)),
    "resnet50": (lambda: resnet50(num_classes=10), (3, 32, 32)),
    "resnet18": (lambda: resnet18(num_classes=10, stem="cifar"), (3, 16, 16)),
}
FORMS = ("fast", "compact")


@pytest.mark.parametrize(
    ("name", "form"),
    [
        *((name, FORMS[index % 2]) for index, name in enumerate(ZOO)),
        *(pytest.param(name, FORMS[index % 2], marks=pytest.mark.check) for index, name in enumerate(WHOLE)),
    ],
)
def test_the_zoo_runs_in_integers_and_is_equal(name, form, tmp_path):
    make, shape = (ZOO | WHOLE)[name]
    case = exported(make(), torch.zeros(1, *shape), spec=bb.Spec.for_backend("onnxruntime"), count=8)
    found = case.verify(case.write(tmp_path / "network.onnx", form))
    assert found.integer_layers == tuple(layer.name for layer in case.compressor.topology.layers)
    assert all(tensor.differing == tensor.differing_end_to_end == 0 for tensor in found.runtime_tensors if tensor.exact)
    assert sum(tensor.exact for tensor in found.runtime_tensors) >= len(found.kernels)


@pytest.mark.parametrize(
    ("make", "shape", "weights", "residual_bits", "trained"),
    [
        (LeNet5, (1, 28, 28), 8, 8, True),
        (lambda: CifarResNet(20), (3, 16, 16), 8, 8, False),
        (lambda: CifarResNet(8), (3, 16, 16), 4, "learned", True),
        (lambda: narrow(ResNet(BasicBlock, (1, 1, 1, 1), num_classes=10, stem="cifar")), (3, 8, 8), 8, 8, False),
    ],
)
def test_the_zoo_is_proven_under_the_default_spec(make, shape, weights, residual_bits, trained, tmp_path):
    """Untrained at 8/8 percents of the codes differ end to end, which are ties and what follows from them."""
    torch.manual_seed(0)
    inputs = torch.rand(8, *shape)
    compressor = bb.attach(make(), inputs[:1], bb.Spec(residual_bits=residual_bits))
    compressor.model.eval()
    compressor.calibrate([inputs])
    if trained:
        compressor.model.train()
        optimizer = torch.optim.SGD(compressor.parameter_groups(), lr=0.05)
        for _ in range(2):
            torch.nn.functional.cross_entropy(compressor.model(inputs), torch.arange(8)).backward()
            optimizer.step()
        compressor.model.eval()
    operands = residual_bits if residual_bits is None else 8
    compressor.fix(bb.Plan.uniform(compressor.topology, weights, 8, residual_bits=operands))
    small = bb.deploy(compressor)
    bb.export_onnx(small, inputs[:1], tmp_path / "network.onnx")
    found = bb.verify(compressor, small, tmp_path / "network.onnx", inputs)
    assert {tensor.name for tensor in found.simulated.tensors} == {grid.name for grid in small.integer.structure.grids}
    assert found.simulated.ties < 1e-4 * found.simulated.codes
    assert found.wrong == ()


class Difficult(nn.Module):
    """What the deployed network has otherwise: padding of its own, dead and repeated calls, tied and transposed
    weights, a quantizer that several layers read, and codes that are concatenated."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, padding=2, padding_mode="reflect")
        self.same = nn.Conv2d(6, 6, 2, padding="same", dilation=3)
        self.one, self.two = nn.Conv2d(6, 4, 1), nn.Conv2d(6, 4, 1)
        self.again = nn.Conv2d(8, 8, 3, padding=1)
        self.up, self.norm = nn.ConvTranspose2d(8, 6, 2, stride=2, bias=False), nn.BatchNorm2d(6)
        self.tied, self.other = nn.Linear(6, 6), nn.Linear(6, 6)
        self.other.weight = self.tied.weight
        self.norms = nn.BatchNorm1d(6)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.same(self.stem(x).relu()).relu()
        x = nn.functional.max_pool2d(torch.cat((self.one(x).relu(), nn.functional.relu6(self.two(x))), 1), 2)
        self.again(x.sigmoid())  # nobody reads it
        x = self.again(self.again(x).relu())
        x = self.norm(self.up(x.relu())).relu()
        y = self.norms(self.tied(x.mean((2, 3))))
        return y + self.other(y.relu()), nn.functional.layer_norm(x, x.shape[1:])


@pytest.mark.filterwarnings("ignore:Using padding='same'")
@pytest.mark.parametrize(("per_channel", "seed"), [(False, 0), (True, 3)])
def test_what_the_deployed_network_does_not_have(per_channel, seed, tmp_path):
    spec = bb.Spec(bits=(2, 4, 8), per_channel_weights=per_channel)
    case = exported(Difficult(), torch.zeros(2, 3, 12, 12), spec=spec, seed=seed, count=8)
    found = case.verify(case.write(tmp_path / "network.onnx"))
    tensors = {tensor.name for tensor in found.simulated.tensors}
    assert tensors == {grid.name for grid in case.small.integer.structure.grids}
    assert [output.values for output in found.simulated.outputs] == [8 * 6, 8 * 6 * 14 * 14]
    assert found.simulated.outputs[1].predictions_end_to_end.classes == 6
    assert found.simulated.outputs[0].predictions_end_to_end.classes == 6


class LongMean(nn.Module):
    """Means over more values than float32 can add up exactly, of codes and of other numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head, self.other = nn.Conv2d(1, 2, 1), nn.Linear(2, 2), nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        return self.head(x.relu().mean((2, 3))) + self.other(x.tanh().mean((2, 3)))


def test_a_mean_over_a_million_values_is_float_arithmetic_and_no_mistake(tmp_path):
    case = exported(LongMean(), torch.zeros(1, 1, 1024, 1024), bits=(8,), count=2)
    assert case.verify(case.write(tmp_path / "network.onnx")).failure is None


class Positions(nn.Module):
    """Constants that an exporter computes: cosines, off in the last bit."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(64, 64), nn.Linear(64, 4)
        self.register_buffer("frequencies", torch.rand(64))

    def forward(self, x: Tensor) -> Tensor:
        positions = torch.arange(x.shape[1])[:, None] * self.frequencies
        return self.head(self.first(x) * positions.cos() + positions.sin())


def test_constants_that_the_exporter_computed_need_not_be_equal_bit_by_bit(tmp_path):
    case = exported(Positions(), torch.zeros(2, 50, 64), bits=(8,), count=4)
    found = case.verify(case.write(tmp_path / "network.onnx"))
    (tensor,) = (tensor for tensor in found.runtime_tensors if tensor.name == "head.input")
    assert not tensor.exact


@pytest.mark.parametrize(("name", "form"), [("vit", "fast"), ("convnext", "compact")])
def test_transformers_run_their_layers_in_integers(name, form, tmp_path):
    model, example = transformer(name)
    case = exported(model, example)
    found = case.verify(case.write(tmp_path / "network.onnx", form))
    assert len(found.exact_layers) == len(case.compressor.topology.layers)
    assert any(not tensor.exact for tensor in found.runtime_tensors), "softmax and normalization stay float"
    assert max(tensor.relative_error for tensor in found.runtime_tensors) < 1e-5


@pytest.mark.parametrize("activations", ["dynamic", "float"])
def test_a_transformer_with_ranges_at_run_time_and_with_weights_alone(activations, tmp_path):
    model, example = transformer("bert")
    spec = bb.Spec.for_backend("onnxruntime", activations=activations)
    case = exported(model, example, spec=spec, drop=0.0, count=8)
    found = case.verify(case.write(tmp_path / "network.onnx", "compact"))
    layers = tuple(layer.name for layer in case.compressor.topology.layers)
    assert found.integer_layers == (layers if activations == "dynamic" else ())
    operations = {kernel.operation for kernel in found.kernels}
    if activations == "dynamic":
        assert operations == {"MatMulIntegerToFloat", "DynamicQuantizeMatMul"}
    else:
        assert "MatMulNBits" in operations  # those of up to 4 bits
    assert max(tensor.relative_error for tensor in found.runtime_tensors) < 1e-5


@pytest.mark.parametrize("name", ["concatenation", "depthwise", "shuffled", "twice", "two inputs"])
def test_small_networks_with_one_difficulty_each(name, tmp_path):
    make, example = OWN[name]
    case = exported(make(), example, spec=bb.Spec(bits=(2, 4, 8), per_channel_weights=True), seed=1)
    found = case.verify(case.write(tmp_path / "network.onnx", "compact"))
    assert len(found.exact_layers) == len(found.kernels)


@settings(max_examples=3, deadline=None, derandomize=True, phases=[Phase.generate])
@given(network=st.integers(0, 40), plan=st.integers(0, 1000))
def test_random_networks_under_random_plans(tmp_path_factory, network, plan):
    path = tmp_path_factory.mktemp("random") / "network.onnx"
    case = exported(Random(network), IMAGES, seed=plan, count=8)
    found = case.verify(case.write(path))
    assert len(found.exact_layers) == len(found.kernels)


@settings(max_examples=2, deadline=None, derandomize=True, phases=[Phase.explicit, Phase.generate])
@example(kinds=[(kind, index % 2 == 0) for index, kind in enumerate(KINDS)], plan=0, per_channel=True)
@given(
    kinds=st.lists(st.tuples(st.sampled_from(KINDS), st.booleans()), min_size=1, max_size=3),
    plan=st.integers(0, 1000),
    per_channel=st.booleans(),
)
def test_weights_that_are_multiplied_in_any_way(tmp_path_factory, kinds, plan, per_channel):
    path = tmp_path_factory.mktemp("products") / "network.onnx"
    spec = bb.Spec(bits=(2, 4, 8), per_channel_weights=per_channel)
    case = exported(Products(kinds), torch.zeros(2, 3, 12, 12), spec=spec, seed=plan, count=4)
    topology = case.compressor.topology
    assert not [entry for entry in topology.unsupported if entry.macs]
    assert case.small.macs < topology.macs, "channels are removed"
    found = case.verify(case.write(path))
    runs_in_integers = [layer.name for layer in topology.layers if layer.kind != "conv_transpose"]
    assert set(runs_in_integers) <= set(found.exact_layers)


class FloatOperations(nn.Module):
    """Layers in front of SiLU, hard-swish, squeeze-and-excitation, concatenation, batch norm, GELU and a mean."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm, self.silu = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.SiLU()
        self.depthwise = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.squeeze, self.excite = nn.Conv2d(8, 4, 1), nn.Conv2d(4, 8, 1)
        self.main, self.relu, self.cheap = nn.Conv2d(8, 8, 1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.joined, self.other = nn.Conv2d(16, 8, 1), nn.BatchNorm2d(8)
        self.wide, self.head = nn.Linear(8, 16), nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.depthwise(self.silu(self.norm(self.stem(x))))
        x = x * nn.functional.relu6(x + 3) / 6
        gate = self.excite(self.silu(self.squeeze(x.mean((2, 3), keepdim=True))))
        x = self.relu(self.main(x * torch.sigmoid(gate)))
        x = self.joined(torch.cat([x, self.relu(self.cheap(x))], 1))
        x = self.wide(self.other(nn.functional.leaky_relu(x)).permute(0, 2, 3, 1))
        return self.head(nn.functional.gelu(x).mean((1, 2)))


def test_convolutions_in_front_of_float_operations_emit_codes(tmp_path):
    torch.manual_seed(0)
    network = FloatOperations().eval()
    case = exported(network, torch.zeros(1, 3, 8, 8), spec=bb.Spec.for_backend("onnxruntime"), count=8)
    found = case.verify(case.write(tmp_path / "network.onnx", "fast"))
    assert {kernel.operation for kernel in found.kernels} == {
        "QLinearConv", "MatMulIntegerToFloat", "MatMulInteger",
    }  # fmt: skip
    assert [layer.name for layer in case.small.integer.layers if layer.output is None] == ["wide", "head"]
    assert all(tensor.differing == 0 for tensor in found.runtime_tensors if tensor.exact)


class Joined(nn.Module):
    """A tensor that a layer and a concatenation read, as in GhostNet: all on one grid."""

    def __init__(self) -> None:
        super().__init__()
        self.main, self.relu, self.cheap = nn.Conv2d(3, 8, 1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.ramp, self.head = nn.ReLU(), nn.Conv2d(16, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.main(x))
        return self.head(torch.cat([x, self.ramp(self.cheap(x))], 1)).mean((2, 3))


@pytest.mark.parametrize("moved", [False, True])
def test_equal_grids_need_no_second_quantizer(moved, tmp_path):
    """Calibration gives the four tensors one range; where training moves one of them, it is rounded again."""
    torch.manual_seed(0)
    inputs = torch.rand(6, 3, 8, 8)
    compressor = bb.attach(Joined().eval(), inputs[:1], bb.Spec.for_backend("onnxruntime"))
    compressor.calibrate([inputs])
    if moved:
        quantizer = compressor.attachment.quantizers["head.input"]
        quantizer.set_range(0.7 * quantizer.beta.item())
    compressor.fix(bb.Plan.uniform(compressor.topology, 8, 8, residual_bits=8))
    small = bb.deploy(compressor)
    targets = [str(node.target) for node in small.program.graph.nodes if node.op == "call_module"]
    assert sum(target.startswith("quantizers") for target in targets) == (2 if moved else 1)
    assert any(target.startswith("dequantizers") for target in targets) is moved
    bb.export_onnx(small, inputs[:1], tmp_path / "network.onnx")
    found = bb.verify(compressor, small, tmp_path / "network.onnx", inputs)
    assert found.exact_layers == ("main", "cheap", "head")


class Padded(nn.Module):
    """Padding with zeros on some sides, in front of layers that read signed and unsigned codes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3, 2, 1), nn.Conv2d(8, 4, 3)
        self.pad, self.head = nn.ZeroPad2d((0, 1, 0, 1)), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.silu(self.first(self.pad(x)))
        x = torch.relu(self.second(self.pad(x)))
        return self.head(nn.functional.silu(self.third(nn.functional.pad(x, (2, 1, 0, 1)))).mean((2, 3)))


def test_convolutions_pad_their_codes_themselves(tmp_path):
    spec = bb.Spec.for_backend("onnxruntime")
    case = exported(Padded(), torch.zeros(1, 3, 9, 9), spec=spec, drop=0.0, count=8)
    path = case.write(tmp_path / "network.onnx", "fast")
    nodes = {node.name: node for node in onnx.load(str(path)).graph.node}
    constants = {c.name: onnx.numpy_helper.to_array(c) for c in onnx.load(str(path)).graph.initializer}
    borders = [constants[node.input[1]] for node in nodes.values() if node.op_type == "Pad"]
    assert not any(border.reshape(2, -1)[:, 2:].any() for border in borders)  # channels may be added, but no positions
    pads = [
        next(list(a.ints) for a in nodes[name].attribute if a.name == "pads") for name in ("first", "second", "third")
    ]
    assert pads == [[0, 0, 1, 1], [1, 1, 2, 2], [0, 2, 1, 1]]
    found = case.verify(path)
    assert all(tensor.differing == 0 for tensor in found.runtime_tensors if tensor.exact)


class TwoEnded(nn.Module):
    """An activation function that has values below zero, a layer whose codes the next one reads, and an addition."""

    def __init__(self, activation: nn.Module) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.expand, self.depthwise = nn.Conv2d(8, 12, 1), nn.Conv2d(12, 12, 3, padding=1, groups=12)
        self.project, self.head = nn.Conv2d(12, 8, 1), nn.Linear(8, 5)
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        x = self.activation(self.norm(self.stem(nn.functional.pad(x, (0, 1, 0, 1)))))
        x = x + self.project(self.activation(self.depthwise(self.expand(x))))
        result: Tensor = self.head(nn.functional.max_pool2d(x, 2).mean((2, 3)))
        return result


@pytest.mark.parametrize(
    ("activation", "bits", "form"),
    [(nn.SiLU, (8,), "fast"), (nn.GELU, (2, 4, 8), "compact"), (nn.Hardswish, (2, 4, 8), "fast"),
     (nn.SiLU, (12, 24), "fast")],
)  # fmt: skip
def test_asymmetric_ranges_are_deployed_and_proven(activation, bits, form, tmp_path):
    spec = bb.Spec(bits=(2, 4, 8, 12, 24))
    case = exported(TwoEnded(activation()), torch.zeros(2, 3, 8, 8), spec=spec, bits=bits, seed=2, count=16)
    grids = {grid.name: grid for grid in case.small.integer.structure.grids}
    assert {"stem.input", "expand.input", "depthwise.input", "project.input"} <= {
        name for name, grid in grids.items() if grid.kind == "asymmetric"
    }
    for grid in grids.values():
        if grid.kind == "asymmetric" and grid.bits <= 8:
            assert (grid.low + grid.zero_point, grid.high + grid.zero_point) == (0, 2**grid.bits - 1)
    found = case.verify(case.write(tmp_path / "network.onnx", form))
    assert found.failure is None
    if max(bits) <= 8:
        assert len(found.exact_layers) == len(found.kernels) == 5
        # What emits codes of an asymmetric range is one integer kernel.
        kernels = {kernel.layer: kernel.operation for kernel in found.kernels}
        assert kernels["expand"] == kernels["project"] == "QLinearConv"
    bb.save(case.small, tmp_path / "saved")
    again = bb.load(tmp_path / "saved")
    assert again.integer.structure.grids == case.small.integer.structure.grids
    assert torch.equal(again(case.inputs), case.small(case.inputs))


SECOND_RUNTIME = {name: (ZOO | WHOLE)[name] for name in ("lenet5", "cifar_resnet8", "mobilenetv2", "resnet18")}


@pytest.mark.check
@pytest.mark.parametrize("name", [*SECOND_RUNTIME, "vit", "bert", "convnext", "llama"])
def test_openvino_runs_networks_in_integers_within_a_step(name, tmp_path):
    if name in SECOND_RUNTIME:
        make, shape = SECOND_RUNTIME[name]
        model, inputs = make(), torch.zeros(1, *shape)
    else:
        model, inputs = transformer(name)
    case = exported(model, inputs, spec=bb.Spec.for_backend("openvino"), bits=(8,), drop=0.0, count=8)
    path = case.write(tmp_path / "qdq.onnx", "qdq")
    layers = tuple(layer.name for layer in case.compressor.topology.layers)
    for runtime in ("onnxruntime", "openvino"):
        found = case.verify(path, runtime)
        rounded = [tensor for tensor in found.runtime_tensors if tensor.steps is not None and tensor.steps.on_grid]
        assert sum(tensor.differing for tensor in rounded) <= 1e-3 * sum(tensor.values for tensor in rounded)
    assert found.exact_layers == layers


@pytest.mark.check
def test_a_network_that_openvino_computes_wrongly_is_found(tmp_path):
    """OpenVINO 2026.4 makes one kernel of two linear layers; without biases it is wrong. See docs/howto/runtimes.md."""
    layers = (nn.Linear(32, 32, bias=False), nn.ReLU(), nn.Linear(32, 2, bias=False))
    case = exported(nn.Sequential(*layers), torch.zeros(4, 32), spec=bb.Spec.for_backend("openvino"), bits=(8,), drop=0)
    path = case.write(tmp_path / "qdq.onnx", "qdq")
    assert case.verify(path, "onnxruntime").failure is None
    with pytest.raises(
        bb.VerificationError, match="output: when the whole file runs in batches of 4, openvino is off by"
    ):
        case.verify(path, "openvino")
