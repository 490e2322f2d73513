"""Every network of the zoo by its name: logits, parameters, MACs and shapes."""

from typing import Any

import pytest
import torch
from torch import nn

from bayesbits.zoo import models
from tests.zoo.models.networks import IMAGE_SHAPE, layer_macs, on_meta, shapes


def test_names_lists_every_network() -> None:
    assert set(models.names()) == set(IMAGE_SHAPE)


def test_an_unknown_name_is_refused_with_the_names_that_exist() -> None:
    with pytest.raises(ValueError, match=r"'resnet19'.*lenet5.*resnet18.*resnet56"):
        models.create("resnet19")


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("resnet18", {"stem": "mnist"}, "'imagenet' or 'cifar', not 'mnist'"),
        ("mobilenetv2", {"width": 0}, "width must be positive"),
    ],
)
def test_an_option_out_of_range_is_refused(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        models.create(name, **options)


@pytest.mark.parametrize("name", models.names())
def test_every_network_maps_images_to_logits(name: str) -> None:
    images = torch.empty(2, *IMAGE_SHAPE[name], device="meta")
    assert on_meta(name, num_classes=7)(images).shape == (2, 7)


@pytest.mark.parametrize(
    ("name", "options", "size"),
    [
        ("lenet5", {}, 28),
        ("vit", {}, 28),
        ("vgg7", {}, 32),
        ("resnet18", {"stem": "cifar", "num_classes": 10}, 32),
        ("resnet50", {"num_classes": 10}, 32),
        ("mobilenetv2", {"width": 0.35}, 32),
        ("resnet20", {}, 32),
    ],
)
def test_a_fresh_network_gives_finite_logits_and_gradients(name: str, options: dict[str, Any], size: int) -> None:
    torch.manual_seed(0)
    model = models.create(name, **options)
    logits = model(torch.randn(2, IMAGE_SHAPE[name][0], size, size))
    logits.square().mean().backward()
    assert logits.isfinite().all()
    assert logits.std() > 0
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None, key
        assert parameter.grad.isfinite().all(), key


@pytest.mark.parametrize(
    ("name", "options", "parameters"),
    [
        # 832 + 51,264 + 524,800 + 5,130
        ("lenet5", {}, 582_026),
        # convolutions 4,574,592, linear 8,388,608 + 10,250, batch norm 2 * (2 * (128 + 256 + 512) + 1024)
        ("vgg7", {}, 12_979_082),
        ("resnet18", {}, 11_689_512),
        ("resnet50", {}, 25_557_032),
        ("mobilenetv2", {}, 3_504_872),
        # 464 + 14,016 + 51,072 + 203,520 + 650; each further block of a stage adds 4,672, 18,560 or 73,984
        ("resnet20", {}, 269_722),
        ("resnet32", {}, 269_722 + 2 * 97_216),
        ("resnet44", {}, 269_722 + 4 * 97_216),
        ("resnet56", {}, 269_722 + 6 * 97_216),
    ],
)
def test_parameter_count(name: str, options: dict[str, Any], parameters: int) -> None:
    assert sum(parameter.numel() for parameter in on_meta(name, **options).parameters()) == parameters


@pytest.mark.parametrize(("name", "percent"), [("lenet5", 5.74), ("vgg7", 6.22)])
def test_relative_bops_of_2_bit_weights_are_the_papers_figure_for_twn(name: str, percent: float) -> None:
    """2-bit weights, 32-bit activations, 8-bit input: the figure settles the padding, which the text leaves open."""
    macs = layer_macs(on_meta(name), IMAGE_SHAPE[name])
    bops = 2 * 8 * macs[0] + 2 * 32 * sum(macs[1:])
    assert 100 * bops / (32 * 32 * sum(macs)) == pytest.approx(percent, abs=0.005)


@pytest.mark.parametrize(
    ("name", "options", "image_shape", "millions"),
    [
        ("resnet18", {}, (3, 224, 224), 1814.073),
        ("resnet18", {"stem": "cifar", "num_classes": 10}, (3, 32, 32), 555.422),
        ("resnet50", {}, (3, 224, 224), 4089.184),
        ("mobilenetv2", {}, (3, 224, 224), 300.774),
        ("resnet20", {}, (3, 32, 32), 40.552),
    ],
)
def test_macs(name: str, options: dict[str, Any], image_shape: tuple[int, ...], millions: float) -> None:
    assert sum(layer_macs(on_meta(name, **options), image_shape)) / 1e6 == pytest.approx(millions, abs=0.001)


@pytest.mark.parametrize(("name", "entries"), [("resnet18", 122), ("resnet50", 320), ("mobilenetv2", 314)])
def test_number_of_entries_is_torchvisions(name: str, entries: int) -> None:
    assert len(on_meta(name).state_dict()) == entries


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "resnet18",
            {
                "conv1.weight": (64, 3, 7, 7),
                "layer1.0.conv1.weight": (64, 64, 3, 3),
                "layer2.0.conv1.weight": (128, 64, 3, 3),
                "layer2.0.downsample.0.weight": (128, 64, 1, 1),
                "layer2.0.downsample.1.running_var": (128,),
                "fc.weight": (1000, 512),
            },
        ),
        (
            "resnet50",
            {
                "layer1.0.conv1.weight": (64, 64, 1, 1),
                "layer1.0.downsample.0.weight": (256, 64, 1, 1),
                "layer2.0.conv1.weight": (128, 256, 1, 1),
                "layer2.0.conv2.weight": (128, 128, 3, 3),
                "layer4.2.conv3.weight": (2048, 512, 1, 1),
                "fc.weight": (1000, 2048),
            },
        ),
        (
            "mobilenetv2",
            {
                "features.0.0.weight": (32, 3, 3, 3),
                "features.1.conv.0.0.weight": (32, 1, 3, 3),
                "features.1.conv.1.weight": (16, 32, 1, 1),
                "features.2.conv.0.0.weight": (96, 16, 1, 1),
                "features.2.conv.1.0.weight": (96, 1, 3, 3),
                "features.2.conv.2.weight": (24, 96, 1, 1),
                "features.17.conv.2.weight": (320, 960, 1, 1),
                "features.18.0.weight": (1280, 320, 1, 1),
                "classifier.1.weight": (1000, 1280),
            },
        ),
        (
            "resnet20",
            {
                "conv1.weight": (16, 3, 3, 3),
                "layer2.0.conv1.weight": (32, 16, 3, 3),
                "layer3.2.bn2.running_mean": (64,),
                "linear.weight": (10, 64),
            },
        ),
    ],
)
def test_shapes_at_known_keys(name: str, expected: dict[str, tuple[int, ...]]) -> None:
    found = shapes(on_meta(name))
    assert {key: found[key] for key in expected} == expected


@pytest.mark.parametrize("name", ["lenet5", "vgg7"])
def test_only_layers_without_batch_norm_have_a_bias(name: str) -> None:
    layers = [module for module in on_meta(name).modules() if isinstance(module, nn.Conv2d | nn.Linear)]
    batch_norms = [module for module in on_meta(name).modules() if isinstance(module, nn.BatchNorm2d | nn.BatchNorm1d)]
    biases = [layer.bias is not None for layer in layers]
    if name == "vgg7":
        assert len(batch_norms) == len(layers) - 1
        assert biases == [False] * 7 + [True]
    else:
        assert not batch_norms
        assert all(biases)
