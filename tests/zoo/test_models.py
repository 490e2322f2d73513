"""The zoo's networks: keys and shapes that published weights rely on, sizes, MACs, and reading checkpoints."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from bayesbits.zoo import models

IMAGE_SHAPE = {
    "lenet5": (1, 28, 28),
    "vgg7": (3, 32, 32),
    "resnet18": (3, 224, 224),
    "resnet50": (3, 224, 224),
    "mobilenetv2": (3, 224, 224),
    "resnet20": (3, 32, 32),
    "resnet32": (3, 32, 32),
    "resnet44": (3, 32, 32),
    "resnet56": (3, 32, 32),
}


def on_meta(name: str, **options: Any) -> nn.Module:
    """The network without storage: names, shapes and forward passes are free."""
    with torch.device("meta"):
        return models.create(name, **options)


def layer_macs(model: nn.Module, image_shape: tuple[int, ...]) -> list[int]:
    """MACs of each conv and linear layer for one image, in the order of the forward pass."""
    macs: list[int] = []

    def count(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        assert isinstance(module.weight, Tensor)
        macs.append(output.numel() * module.weight[0].numel())

    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            module.register_forward_hook(count)
    model.eval()(torch.empty(1, *image_shape, device="meta"))
    return macs


def shapes(model: nn.Module) -> dict[str, tuple[int, ...]]:
    return {key: tuple(value.shape) for key, value in model.state_dict().items()}


def batch_norm_keys(name: str) -> list[str]:
    return [f"{name}.{part}" for part in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")]


# The registry


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


@pytest.mark.parametrize("depth", [2, 18, 21])
def test_a_cifar_resnet_of_impossible_depth_is_refused(depth: int) -> None:
    with pytest.raises(ValueError, match=r"6n \+ 2"):
        models.CifarResNet(depth)


# Sizes


@pytest.mark.parametrize("name", models.names())
def test_every_network_maps_images_to_logits(name: str) -> None:
    images = torch.empty(2, *IMAGE_SHAPE[name], device="meta")
    assert on_meta(name, num_classes=7)(images).shape == (2, 7)


@pytest.mark.parametrize(
    ("name", "options", "size"),
    [
        ("lenet5", {}, 28),
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


@pytest.mark.parametrize(("width", "millions"), [(0.35, 1.68), (1.4, 6.11)])
def test_mobilenetv2_parameters_at_the_widths_in_common_use(width: float, millions: float) -> None:
    parameters = sum(parameter.numel() for parameter in on_meta("mobilenetv2", width=width).parameters())
    assert parameters / 1e6 == pytest.approx(millions, abs=0.005)


def test_lenet5_macs_by_hand() -> None:
    assert layer_macs(on_meta("lenet5"), (1, 28, 28)) == [24 * 24 * 32 * 25, 8 * 8 * 64 * 800, 1024 * 512, 512 * 10]


def test_vgg7_macs_by_hand() -> None:
    assert layer_macs(on_meta("vgg7"), (3, 32, 32)) == [
        32 * 32 * 128 * 27,
        32 * 32 * 128 * 1152,
        16 * 16 * 256 * 1152,
        16 * 16 * 256 * 2304,
        8 * 8 * 512 * 2304,
        8 * 8 * 512 * 4608,
        8192 * 1024,
        1024 * 10,
    ]


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


# Keys of published weights


@pytest.mark.parametrize(("name", "entries"), [("resnet18", 122), ("resnet50", 320), ("mobilenetv2", 314)])
def test_number_of_entries_is_torchvisions(name: str, entries: int) -> None:
    assert len(on_meta(name).state_dict()) == entries


def test_resnet18_keys_are_torchvisions() -> None:
    expected = ["conv1.weight", *batch_norm_keys("bn1")]
    for stage in (1, 2, 3, 4):
        for block in (0, 1):
            prefix = f"layer{stage}.{block}"
            for index in (1, 2):
                expected += [f"{prefix}.conv{index}.weight", *batch_norm_keys(f"{prefix}.bn{index}")]
            if stage > 1 and block == 0:
                expected += [f"{prefix}.downsample.0.weight", *batch_norm_keys(f"{prefix}.downsample.1")]
    expected += ["fc.weight", "fc.bias"]
    assert list(on_meta("resnet18").state_dict()) == expected


def test_resnet50_keys_are_torchvisions() -> None:
    expected = ["conv1.weight", *batch_norm_keys("bn1")]
    for stage, blocks in ((1, 3), (2, 4), (3, 6), (4, 3)):
        for block in range(blocks):
            prefix = f"layer{stage}.{block}"
            for index in (1, 2, 3):
                expected += [f"{prefix}.conv{index}.weight", *batch_norm_keys(f"{prefix}.bn{index}")]
            if block == 0:
                expected += [f"{prefix}.downsample.0.weight", *batch_norm_keys(f"{prefix}.downsample.1")]
    expected += ["fc.weight", "fc.bias"]
    assert list(on_meta("resnet50").state_dict()) == expected


def test_mobilenetv2_keys_are_torchvisions() -> None:
    def convolution(name: str) -> list[str]:
        return [f"{name}.0.weight", *batch_norm_keys(f"{name}.1")]

    expected = convolution("features.0")
    expected += convolution("features.1.conv.0")
    expected += ["features.1.conv.1.weight", *batch_norm_keys("features.1.conv.2")]
    for index in range(2, 18):
        prefix = f"features.{index}.conv"
        expected += convolution(f"{prefix}.0") + convolution(f"{prefix}.1")
        expected += [f"{prefix}.2.weight", *batch_norm_keys(f"{prefix}.3")]
    expected += convolution("features.18") + ["classifier.1.weight", "classifier.1.bias"]
    assert list(on_meta("mobilenetv2").state_dict()) == expected


@pytest.mark.parametrize(("name", "blocks"), [("resnet20", 3), ("resnet32", 5), ("resnet44", 7), ("resnet56", 9)])
def test_cifar_resnet_keys_are_akamasters(name: str, blocks: int) -> None:
    expected = ["conv1.weight", *batch_norm_keys("bn1")]
    for stage in (1, 2, 3):
        for block in range(blocks):
            for index in (1, 2):
                prefix = f"layer{stage}.{block}"
                expected += [f"{prefix}.conv{index}.weight", *batch_norm_keys(f"{prefix}.bn{index}")]
    expected += ["linear.weight", "linear.bias"]
    assert list(on_meta(name).state_dict()) == expected


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


def test_the_bottleneck_strides_on_its_3x3_convolution() -> None:
    model = on_meta("resnet50")
    assert model.get_submodule("layer2.0.conv1").stride == (1, 1)
    assert model.get_submodule("layer2.0.conv2").stride == (2, 2)


def test_the_cifar_stem_keeps_the_size_of_the_image() -> None:
    model = on_meta("resnet18", stem="cifar")
    assert shapes(model)["conv1.weight"] == (64, 3, 3, 3)
    stem_macs = layer_macs(model, (3, 32, 32))[0]
    assert stem_macs == 32 * 32 * 64 * 27
    assert model.get_submodule("layer1")(torch.empty(1, 64, 32, 32, device="meta")).shape == (1, 64, 32, 32)


def test_mobilenetv2_width_rounds_channels_to_multiples_of_8_and_keeps_the_head() -> None:
    found = shapes(on_meta("mobilenetv2", width=0.35))
    assert found["features.0.0.weight"][0] == 16  # 11.2 would lose over a tenth at 8
    assert found["features.1.conv.1.weight"][0] == 8
    assert found["features.18.0.weight"][0] == 1280
    assert shapes(on_meta("mobilenetv2", width=1.4))["features.18.0.weight"][0] == 1792


def test_the_cifar_shortcut_keeps_every_second_pixel_between_zero_channels() -> None:
    images = torch.randn(2, 16, 8, 8)
    shortcut = models.create("resnet20").get_submodule("layer2.0.shortcut")(images)
    assert shortcut.shape == (2, 32, 4, 4)
    assert torch.equal(shortcut[:, 8:24], images[:, :, ::2, ::2])
    assert shortcut[:, :8].count_nonzero() == 0
    assert shortcut[:, 24:].count_nonzero() == 0


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


# Checkpoints


def small_model(seed: int) -> nn.Module:
    """The smallest member of the CIFAR family, with batch norm statistics that are not the initial ones."""
    torch.manual_seed(seed)
    model = models.CifarResNet(8)
    model(torch.randn(4, 3, 8, 8))
    return model


def plain(state: dict[str, Tensor]) -> object:
    return state


def under_a_key(state: dict[str, Tensor]) -> object:
    return {"state_dict": state, "best_prec1": 91.73}


def data_parallel(state: dict[str, Tensor]) -> object:
    return {"state_dict": {f"module.{key}": value for key, value in state.items()}}


def data_parallel_without_a_key(state: dict[str, Tensor]) -> object:
    return {f"module.{key}": value for key, value in state.items()}


@pytest.mark.parametrize("wrap", [plain, under_a_key, data_parallel, data_parallel_without_a_key])
def test_a_checkpoint_loads_from_every_wrapping(tmp_path: Path, wrap: Callable[[dict[str, Tensor]], object]) -> None:
    trained, fresh = small_model(0), small_model(1)
    path = tmp_path / "small.th"
    torch.save(wrap(trained.state_dict()), path)
    models.load_checkpoint(fresh, path)
    for key, value in trained.state_dict().items():
        assert torch.equal(fresh.state_dict()[key], value), key
    images = torch.randn(2, 3, 8, 8)
    assert torch.equal(fresh.eval()(images), trained.eval()(images))


def test_a_checkpoint_from_before_num_batches_tracked_loads(tmp_path: Path) -> None:
    trained, fresh = small_model(0), small_model(1)
    state = trained.state_dict()  # keeps its `_metadata`, which says that num_batches_tracked should be there
    for key in [key for key in state if key.endswith("num_batches_tracked")]:
        del state[key]
    torch.save(state, tmp_path / "old.pth")
    models.load_checkpoint(fresh, tmp_path / "old.pth")
    assert torch.equal(fresh.get_parameter("linear.weight"), trained.get_parameter("linear.weight"))


def test_a_missing_key_is_named_with_the_file(tmp_path: Path) -> None:
    path = tmp_path / "shallow.pth"
    torch.save(models.CifarResNet(8).state_dict(), path)
    with pytest.raises(
        ValueError, match=rf"{re.escape(str(path))} does not fit CifarResNet: 'layer1\.1\.conv1\.weight'"
    ):
        models.load_checkpoint(models.CifarResNet(14), path)


def test_an_unexpected_key_is_named_with_the_file(tmp_path: Path) -> None:
    path = tmp_path / "deep.pth"
    torch.save(models.CifarResNet(14).state_dict(), path)
    with pytest.raises(ValueError, match=r"deep\.pth .* has no 'layer1\.1\.conv1\.weight'"):
        models.load_checkpoint(models.CifarResNet(8), path)


def test_another_shape_is_named_with_the_file_and_leaves_the_network_alone(tmp_path: Path) -> None:
    path = tmp_path / "hundred.pth"
    torch.save(models.CifarResNet(8, num_classes=100).state_dict(), path)
    model = models.CifarResNet(8)
    before = model.conv1.weight.clone()
    with pytest.raises(ValueError, match=r"hundred\.pth .*'linear\.weight' has shape \(100, 64\), not \(10, 64\)"):
        models.load_checkpoint(model, path)
    assert torch.equal(model.conv1.weight, before)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"state": torch.zeros(2), "epoch": 3}, "an object of type int under 'epoch'"),
        ({0: torch.zeros(2)}, "an object of type Tensor under 0"),
        ([1, 2], "an object of type list"),
    ],
)
def test_a_file_without_a_state_dict_is_refused(tmp_path: Path, content: object, message: str) -> None:
    path = tmp_path / "other.pth"
    torch.save(content, path)
    with pytest.raises(ValueError, match=rf"other\.pth holds {message}; expected a state_dict"):
        models.load_checkpoint(models.CifarResNet(8), path)


@pytest.mark.parametrize("name", ["noise.pth", "noise.safetensors", "noise.checkpoint"])
@pytest.mark.parametrize(
    "content", [b"", b"not a checkpoint", b"hello there", b"PK\x03\x04 broken", b"bayesbits 1 ab\nPK"]
)
def test_a_file_that_is_no_checkpoint_is_refused_by_name(tmp_path: Path, content: bytes, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"{name} is not a checkpoint.* Expected is a state_dict of this network"):
        models.load_checkpoint(models.CifarResNet(8), path)


@pytest.mark.parametrize("part", [0.1, 0.5, 0.99])
@pytest.mark.parametrize("name", ["cut.pth", "cut.safetensors"])
def test_a_file_that_is_cut_off_is_refused_by_name(tmp_path: Path, name: str, part: float) -> None:
    path = tmp_path / name
    state = models.CifarResNet(8).state_dict()
    save_file(state, path) if path.suffix == ".safetensors" else torch.save(state, path)
    content = path.read_bytes()
    path.write_bytes(content[: int(part * len(content))])
    with pytest.raises(ValueError, match=rf"{re.escape(name)} is not a checkpoint"):
        models.load_checkpoint(models.CifarResNet(8), path)


def test_safetensors_are_read(tmp_path: Path) -> None:
    trained, fresh = small_model(0), small_model(1)
    save_file(trained.state_dict(), tmp_path / "trained.safetensors")
    models.load_checkpoint(fresh, tmp_path / "trained.safetensors")
    assert torch.equal(fresh.get_parameter("linear.weight"), trained.get_parameter("linear.weight"))


def test_a_file_that_is_not_there_and_a_folder_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"none\.pth is not there; give the file with a state_dict"):
        models.load_checkpoint(models.CifarResNet(8), tmp_path / "none.pth")
    with pytest.raises(FileNotFoundError, match=r"is a folder; give the file"):
        models.load_checkpoint(models.CifarResNet(8), tmp_path)


class Opens:
    """What a pickle can do to its reader."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> object:
        return Path.touch, (self.path,)


def test_a_file_that_would_run_code_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "whole_module.pth"
    for content in (nn.Linear(2, 2), Opens(tmp_path / "ran")):
        torch.save(content, path)
        with pytest.raises(ValueError, match=r"whole_module\.pth is not .* save model\.state_dict\(\)") as refused:
            models.load_checkpoint(models.CifarResNet(8), path)
        assert "weights_only" not in str(refused.value)
    assert not (tmp_path / "ran").exists()
