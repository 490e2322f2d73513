"""The small vision transformer: its products, and options that do not fit."""

import pytest
import torch

import bayesbits as bb
from bayesbits.zoo import models
from tests.zoo.models.networks import layer_macs, on_meta


def test_vit_macs_by_hand() -> None:
    block = [16 * 64 * 3 * 64, 16 * 64 * 64, 16 * 64 * 128, 16 * 128 * 64]
    assert layer_macs(on_meta("vit"), (1, 28, 28)) == [16 * 49 * 64, *block, *block, 64 * 10]


def test_every_multiplication_of_the_network_can_be_quantized() -> None:
    topology = bb.trace(models.create("vit"), torch.zeros(1, 1, 28, 28), activation_products=True)
    assert sum(entry.macs for entry in topology.unsupported) == 0
    assert [product.macs for product in topology.products] == [16 * 16 * 64] * 4


@pytest.mark.parametrize(
    ("options", "message"),
    [({"image_size": 30}, "image_size is 30.*no multiple of patch_size, 7"), ({"heads": 5}, "width is 64.*5 heads")],
)
def test_sizes_that_do_not_fit_are_refused(options: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        models.create("vit", **options)
