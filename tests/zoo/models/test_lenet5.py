"""LeNet-5 has the sizes of the paper."""

from tests.zoo.models.networks import layer_macs, on_meta


def test_lenet5_macs_by_hand() -> None:
    assert layer_macs(on_meta("lenet5"), (1, 28, 28)) == [24 * 24 * 32 * 25, 8 * 8 * 64 * 800, 1024 * 512, 512 * 10]
