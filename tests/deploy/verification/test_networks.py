"""Networks of the zoo and of the field: onnxruntime computes the codes of the deployed network, in integer kernels."""

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import bayesbits as bb
from bayesbits.zoo.models import VGG7, CifarResNet, LeNet5, MobileNetV2, resnet18, resnet50
from tests.deploy.exported import exported
from tests.graph.networks import IMAGES, OWN, transformer
from tests.graph.test_random_networks import Random

ZOO = {
    "lenet5": (LeNet5, (1, 28, 28)),
    "cifar_resnet8": (lambda: CifarResNet(8), (3, 16, 16)),
    "mobilenetv2": (lambda: MobileNetV2(num_classes=10, width=0.25), (3, 32, 32)),
    "vgg7": (VGG7, (3, 32, 32)),
    "resnet18": (lambda: resnet18(num_classes=10, stem="cifar"), (3, 16, 16)),
    "resnet50": (lambda: resnet50(num_classes=10), (3, 32, 32)),
    "cifar_resnet20": (lambda: CifarResNet(20), (3, 32, 32)),
}


@pytest.mark.parametrize(("name", "form"), [(name, ("fast", "compact")[i % 2]) for i, name in enumerate(ZOO)])
def test_the_zoo_runs_in_integers_and_is_equal(name, form, tmp_path):
    make, shape = ZOO[name]
    case = exported(make(), torch.zeros(1, *shape), spec=bb.Spec.for_backend("onnxruntime"))
    found = case.verify(case.write(tmp_path / "network.onnx", form))
    assert found.integer_layers == tuple(layer.name for layer in case.compressor.topology.layers)
    assert all(place.differing == place.differing_end_to_end == 0 for place in found.places if place.exact)
    assert sum(place.exact for place in found.places) >= len(found.kernels)


@pytest.mark.parametrize(("name", "form"), [("vit", "fast"), ("convnext", "compact")])
def test_transformers_run_their_layers_in_integers(name, form, tmp_path):
    model, example = transformer(name)
    case = exported(model, example)
    found = case.verify(case.write(tmp_path / "network.onnx", form))
    assert len(found.integer_layers) == len(case.compressor.topology.layers)
    assert any(not place.exact for place in found.places), "softmax and normalisation stay float"
    assert max(place.relative_error for place in found.places) < 1e-5


@pytest.mark.parametrize("name", ["concatenation", "depthwise", "shuffled", "twice", "two inputs"])
def test_small_networks_with_one_difficulty_each(name, tmp_path):
    make, example = OWN[name]
    case = exported(make(), example, spec=bb.Spec(bits=(2, 4, 8), per_channel_weights=True), seed=1)
    found = case.verify(case.write(tmp_path / "network.onnx", "compact"))
    assert len(found.integer_layers) == len(found.kernels)


@settings(max_examples=3, deadline=None, derandomize=True, phases=[Phase.generate])
@given(network=st.integers(0, 40), plan=st.integers(0, 1000))
def test_random_networks_under_random_plans(tmp_path_factory, network, plan):
    path = tmp_path_factory.mktemp("random") / "network.onnx"
    case = exported(Random(network), IMAGES, seed=plan, count=8)
    found = case.verify(case.write(path))
    assert len(found.integer_layers) == len(found.kernels)
