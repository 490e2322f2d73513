"""Learn bits and channels with Lightning's Trainer, checkpoints and resume included.

python examples/lightning_callback.py FOLDER

The training step adds the penalty, the optimizer gets the parameter groups, and a callback calibrates before the first
step, watches the cost and writes the plan.
"""

import sys
import warnings
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

import bayesbits as bb

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import lightning as L

LR = {"weights": 1e-3, "gates": 5e-2, "ranges": 1e-3}


class Classifier(L.LightningModule):
    """A network with quantizers attached, and its training step."""

    def __init__(self, compressor: bb.Compressor, mu: float) -> None:
        super().__init__()
        self.model, self.compressor, self.mu = compressor.model, compressor, mu

    def training_step(self, batch, index):
        images, labels = batch
        return F.cross_entropy(self.model(images), labels) + self.mu * self.compressor.penalty()

    def configure_optimizers(self):
        return torch.optim.Adam(group | {"lr": LR[group["name"]]} for group in self.compressor.parameter_groups())


class BayesBitsCallback(L.Callback):
    """Calibrates ranges before a new training, prints the expected cost, and writes the plan at the end."""

    def __init__(self, calibration: torch.Tensor, folder: Path) -> None:
        self.calibration, self.folder = calibration, folder

    def on_train_start(self, trainer, module) -> None:
        if trainer.global_step == 0:  # a checkpoint brings its ranges
            module.compressor.calibrate([self.calibration])

    def on_train_epoch_end(self, trainer, module) -> None:
        expected = module.compressor.expected_relative_bops().item()
        print(f"epoch {trainer.current_epoch + 1}: {expected:.3f}% of the bit operations expected")

    def on_train_end(self, trainer, module) -> None:
        module.compressor.plan().save(self.folder / "plan.json")


def make_classifier() -> Classifier:
    """A small network for images of 8 x 8 pixels, attached."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(32 * 4 * 4, 10),
    )  # fmt: skip
    return Classifier(bb.attach(model, torch.zeros(1, 1, 8, 8), bb.Spec.for_backend("onnxruntime")), mu=0.03)


def fit(folder: Path, images: torch.Tensor, labels: torch.Tensor, epochs: int, checkpoint: Path | None) -> Classifier:
    """Train up to this epoch, from the beginning or from a checkpoint; every epoch leaves one."""
    classifier = make_classifier()
    callbacks = [
        BayesBitsCallback(images[:256], folder),
        L.pytorch.callbacks.ModelCheckpoint(folder, filename="last", enable_version_counter=False),
    ]
    trainer = L.Trainer(
        max_epochs=epochs, accelerator="cpu", callbacks=callbacks, default_root_dir=folder, logger=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    data = torch.utils.data.TensorDataset(images, labels)
    loader = torch.utils.data.DataLoader(data, batch_size=64, shuffle=True)
    trainer.fit(classifier, loader, ckpt_path=checkpoint)
    return classifier


def main(folder: Path) -> None:
    digits = load_digits()
    images = torch.tensor(digits.images / 16, dtype=torch.float32).unsqueeze(1)
    labels = torch.tensor(digits.target)
    fit(folder, images[:1400], labels[:1400], epochs=5, checkpoint=None)
    print("the checkpoint goes on")
    classifier = fit(folder, images[:1400], labels[:1400], epochs=10, checkpoint=folder / "last.ckpt")

    compressor = classifier.compressor
    compressor.fix(bb.Plan.load(folder / "plan.json"))
    with torch.no_grad():
        right = (compressor.model.eval()(images[1400:]).argmax(1) == labels[1400:]).float().mean()
    print(f"{100 * right:.1f}% accuracy at {compressor.cost().relative_bops:.2f}% of the bit operations")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
