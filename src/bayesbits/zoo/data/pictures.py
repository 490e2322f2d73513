"""One picture file through Pillow, and a picture as a tensor."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from bayesbits.utils.optional_packages import require_packages

if TYPE_CHECKING:
    from PIL.Image import Image


def read_picture(path: str | os.PathLike[str]) -> Image:
    """The picture in `path` in red, green and blue, read to its end; a ValueError names a file that is not one."""
    require_packages(f"reading {os.fspath(path)}", "PIL")
    import PIL.Image

    try:
        with PIL.Image.open(path) as picture:
            return picture.convert("RGB")
    except Exception as error:  # a damaged file can raise nearly anything from Pillow's many formats
        raise ValueError(f"{os.fspath(path)} cannot be read as a picture: {error}") from error


def as_tensor(picture: Image) -> Tensor:
    """uint8, [3, height, width]."""
    return torch.from_numpy(np.array(picture)).permute(2, 0, 1).contiguous()
