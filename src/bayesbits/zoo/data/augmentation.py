"""The usual augmentation of small images, for a whole batch at once on the device where it lies.

Every image is padded on all sides, cut back to its size at a place of its own, and mirrored or not. It is one lookup:
each pixel of the result is read from the row and the column where the crop and the mirror put it.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


def augment(images: Tensor, generator: torch.Generator | None = None, padding: int = 4, flip: bool = True) -> Tensor:
    """Random crops of the zero-padded images [N, C, H, W], half of them mirrored left to right if `flip`.

    Size and dtype stay. Zero is black before `normalize` and the mean color after it. A `generator` must be of the
    images' device; the numbers drawn depend only on N, `padding` and `flip`.
    """
    if images.ndim != 4:
        raise ValueError(f"augment takes a batch [N, C, H, W], not {list(images.shape)}")
    if padding < 0:
        raise ValueError(f"padding is {padding}; it must be 0 or more")
    number, channels, height, width = images.shape
    device = images.device
    offsets = torch.randint(2 * padding + 1, (2, number, 1), generator=generator, device=device)
    rows = offsets[0] + torch.arange(height, device=device)
    columns = torch.arange(width, device=device).expand(number, width)
    if flip:
        mirrored = torch.randint(2, (number, 1), generator=generator, device=device).bool()
        columns = torch.where(mirrored, width - 1 - columns, columns)
    columns = columns + offsets[1]
    padded = F.pad(images, (padding, padding, padding, padding))
    # One index into a flattened image, shared by its channels: 2 to 3 times as fast on a CPU as an index a dimension.
    places = (rows.unsqueeze(2) * padded.shape[3] + columns.unsqueeze(1)).view(number, 1, height * width)
    return padded.flatten(2).gather(2, places.expand(-1, channels, -1)).view(images.shape)
