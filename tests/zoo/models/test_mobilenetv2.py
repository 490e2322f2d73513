"""MobileNetV2: the keys of torchvision and the widths in common use."""

import pytest

from tests.zoo.models.networks import batch_norm_keys, on_meta, shapes


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


@pytest.mark.parametrize(("width", "millions"), [(0.35, 1.68), (1.4, 6.11)])
def test_mobilenetv2_parameters_at_the_widths_in_common_use(width: float, millions: float) -> None:
    parameters = sum(parameter.numel() for parameter in on_meta("mobilenetv2", width=width).parameters())
    assert parameters / 1e6 == pytest.approx(millions, abs=0.005)


def test_mobilenetv2_width_rounds_channels_to_multiples_of_8_and_keeps_the_head() -> None:
    found = shapes(on_meta("mobilenetv2", width=0.35))
    assert found["features.0.0.weight"][0] == 16  # 11.2 would lose over a tenth at 8
    assert found["features.1.conv.1.weight"][0] == 8
    assert found["features.18.0.weight"][0] == 1280
    assert shapes(on_meta("mobilenetv2", width=1.4))["features.18.0.weight"][0] == 1792
