"""The handwritten digits that scikit-learn contains: 1,797 images, without a download.

The originals are 8 x 8 with 17 shades. They are stretched to the bytes 0 to 255 and resized bilinearly (pixel centers
aligned, as torch does without `align_corners`), so that networks for MNIST take them. One image in five of each class
is a test image, chosen by a fixed permutation.
"""

from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from bayesbits.utils.optional_packages import require_packages
from bayesbits.zoo.data.dataset import Dataset

_CLASSES = 10
_BRIGHTEST = 16
_TEST_PART = 0.2
_SEED = 0


def digits(_folder: Path | str | None = None, size: int = 28) -> tuple[Dataset, Dataset]:
    """Training and test images of `size` x `size` pixels, one channel; no folder is needed."""
    if size < 1:
        raise ValueError(f"size is {size}; the digits have at least one pixel")
    require_packages("the data set 'digits'", "sklearn")
    from sklearn.datasets import load_digits

    bunch = load_digits()
    shades = torch.from_numpy(bunch.images).unsqueeze(1)
    resized = F.interpolate(shades * (255 / _BRIGHTEST), size=(size, size), mode="bilinear", align_corners=False)
    images = resized.round().to(torch.uint8)
    labels = torch.from_numpy(bunch.target).long()
    train, test = _split(labels)
    return Dataset(images[train], labels[train], _CLASSES), Dataset(images[test], labels[test], _CLASSES)


def _split(labels: Tensor) -> tuple[Tensor, Tensor]:
    """The indices of the training and of the test images: the last fifth of each class in a fixed order is tested."""
    # RandomState, because NumPy promises never to change its stream.
    order = torch.from_numpy(np.random.RandomState(_SEED).permutation(len(labels)))
    for_test = torch.zeros(len(labels), dtype=torch.bool)
    for label in range(_CLASSES):
        members = order[labels[order] == label]
        for_test[members[len(members) - round(_TEST_PART * len(members)) :]] = True
    return order[~for_test[order]], order[for_test[order]]
