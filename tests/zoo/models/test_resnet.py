"""ResNet-18 and ResNet-50: the keys of torchvision, strides and stems."""

import torch

from tests.zoo.models.networks import batch_norm_keys, layer_macs, on_meta, shapes


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
