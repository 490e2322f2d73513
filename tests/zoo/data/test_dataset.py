"""A data set in memory is checked when it is made, and moves between devices."""

import pytest
import torch
from torch import Tensor

from bayesbits.zoo import data
from tests.zoo.data_files import refused


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (torch.zeros(2, 1, 4, 4), torch.tensor([0, 1]), "float32 [2, 1, 4, 4]"),
        (torch.zeros(2, 4, 4, dtype=torch.uint8), torch.tensor([0, 1]), "uint8 [2, 4, 4]"),
        (torch.zeros(2, 1, 4, 4, dtype=torch.uint8), torch.tensor([0.0, 1.0]), "float32 [2]"),
        (torch.zeros(2, 1, 4, 4, dtype=torch.uint8), torch.tensor([0]), "2 images do not fit 1 labels"),
        (torch.zeros(0, 1, 4, 4, dtype=torch.uint8), torch.tensor([], dtype=torch.int64), "without pixels"),
        (torch.zeros(2, 1, 4, 4, dtype=torch.uint8), torch.tensor([0, 3]), "from 0 to 3; with 3 classes"),
        (torch.zeros(2, 1, 4, 4, dtype=torch.uint8), torch.tensor([-1, 0]), "from -1 to 0"),
    ],
)
def test_a_data_set_is_checked_when_it_is_made(images: Tensor, labels: Tensor, message: str):
    with refused(ValueError, message):
        data.Dataset(images, labels, classes=3)


def test_a_data_set_moves_to_a_device():
    test = data.load("digits", size=8).test
    assert len(test) == 359
    assert test.to("cpu").images.device.type == "cpu"
