"""Compress a network that gives a class to every pixel, with `bb.search` and `bb.finetune`.

python examples/segmentation.py FOLDER

A small U-Net finds bright discs in made-up images with noise.
"""

import sys
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import bayesbits as bb


class UNet(nn.Module):
    """One step down, one step up, and a connection past them."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(1, width, 3, padding=1), nn.ReLU())
        self.bottom = nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(width, 2 * width, 3, padding=1), nn.ReLU())
        self.up = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.out = nn.Sequential(nn.Conv2d(2 * width, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, 2, 1))

    def forward(self, images: Tensor) -> Tensor:
        fine = self.down(images)
        return self.out(torch.cat([fine, self.up(self.bottom(fine))], 1))


def make_discs(count: int, size: int = 16) -> tuple[Tensor, Tensor]:
    """Images with one disc each, and which pixels belong to it."""
    generator = torch.Generator().manual_seed(count)
    y, x = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    center = torch.randint(4, size - 4, (count, 2, 1, 1), generator=generator)
    masks = ((y - center[:, 0]) ** 2 + (x - center[:, 1]) ** 2 <= 12).long()
    images = masks.unsqueeze(1) + 0.5 * torch.randn(count, 1, size, size, generator=generator)
    return images, masks


@torch.no_grad()
def intersection_over_union(model: nn.Module, images: Tensor, masks: Tensor) -> float:
    """Of the discs' pixels, in percent."""
    found, true = model.eval()(images).argmax(1) == 1, masks == 1
    return (100 * (found & true).sum() / (found | true).sum()).item()


def main(folder: Path) -> None:
    torch.manual_seed(0)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*make_discs(512)), batch_size=32, shuffle=True)
    test_images, test_masks = make_discs(128)
    compressor = bb.attach(UNet(), test_images[:1], bb.Spec.for_backend("onnxruntime"))
    search = bb.SearchConfig(epochs=12, mu=0.01, weights={"lr": 3e-3})
    bb.search(compressor, loader, F.cross_entropy, search, folder=folder, progress=False)
    bb.finetune(compressor, loader, F.cross_entropy, bb.FinetuneConfig(epochs=2), folder=folder, progress=False)

    small = bb.deploy(compressor)
    print(small)
    print(
        f"{intersection_over_union(small, test_images, test_masks):.1f}% intersection over union at "
        f"{compressor.cost().relative_bops:.2f}% of the bit operations"
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
