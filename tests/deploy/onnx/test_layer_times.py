"""Times of layers in both files: the nodes of each file are found again by the layers' names."""

import onnx
import torch
from torch import nn

import bayesbits as bb
from bayesbits.deploy.onnx.export import export_float_onnx
from bayesbits.deploy.onnx.layer_times import LayerTime, float_layers, measure_layer_times
from tests.deploy.exported import exported


class Network(nn.Module):
    """Convolutions with and without batch norm and activation, in layouts of their own or not."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.relu = nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU()
        self.second, self.third, self.head = nn.Conv2d(16, 6, 1), nn.Conv2d(6, 16, 1), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.second(self.relu(self.norm(self.first(x))))
        return self.head(nn.functional.silu(self.third(torch.relu(x))).mean((2, 3)))


def test_every_layer_is_found_in_both_files(tmp_path):
    example = torch.randn(1, 3, 10, 10)
    case = exported(Network(), example, spec=bb.Spec.for_backend("onnxruntime"), drop=0.0, count=2)
    topology = case.compressor.topology
    path, network = case.write(tmp_path / "integer.onnx"), tmp_path / "float.onnx"
    export_float_onnx(case.compressor.detach(), example, network)
    layers = float_layers(onnx.load(str(network)), topology)
    weighted = [node for node in onnx.load(str(network)).graph.node if node.op_type in ("Conv", "Gemm", "MatMul")]
    assert [layers[node.name] for node in weighted] == ["first", "second", "third", "head"]
    times = measure_layer_times(network, path, case.small, topology, example, rounds=2)
    assert [one.layer for one in times] == ["first", "second", "third", "head"]
    assert [one.kernel for one in times] == ["QLinearConv", "QLinearConv", "QLinearConv", "MatMulInteger"]
    assert all(one.seconds > 0 and one.float_seconds > 0 for one in times)


def test_slower_is_a_comparison_with_float():
    assert LayerTime("a", "ConvInteger", 2.0, 1.0).slower
    assert not LayerTime("a", "QLinearConv", 1.0, 1.0).slower
