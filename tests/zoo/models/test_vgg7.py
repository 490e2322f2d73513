"""VGG-7 has the sizes of the paper."""

from tests.zoo.models.networks import layer_macs, on_meta


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
