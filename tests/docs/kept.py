"""Results of searches for the tests of the page: files with the fields that it reads."""

import json
from pathlib import Path
from typing import Any


def layer(name: str, weights: int, inputs: int, left: int, of: int) -> dict[str, Any]:
    return {
        "name": name, "weight_bits": weights, "activation_bits": inputs, "kept_out": left, "channels_out": of,
        "share": 50.0,
    }  # fmt: skip


def result(recipe: str, accuracy: float, **other: Any) -> dict[str, Any]:
    return {
        "recipe": recipe, "accuracy": accuracy, "float_accuracy": None, "relative_bops": 0.5, "epochs": 3, "seed": 0,
        "float_epochs": 0, "finetune_epochs": 2, "weight_bytes": 2000, "seconds": 10, "device": "GPU (cuda)", "mu": 0.1,
        "layers": [layer("a", 2, 4, 8, 16), layer("b", 8, 8, 10, 10)],
    } | other  # fmt: skip


def write(folder: Path, **files: Any) -> Path:
    """Write files by their names; underscores stand for hyphens, and two of them for a dot."""
    for name, content in files.items():
        (folder / f"{name.replace('__', '.').replace('_', '-')}.json").write_text(json.dumps(content))
    return folder
