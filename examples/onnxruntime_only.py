"""Run a deployed network with onnxruntime and numpy alone: neither torch nor bayesbits is imported.

python examples/onnxruntime_only.py FOLDER

The folder holds `small.onnx` and `test.npz`, which examples/own_training_loop.py writes.
"""

import sys
from pathlib import Path

import numpy as np
import onnxruntime


def main(folder: Path) -> None:
    session = onnxruntime.InferenceSession(folder / "small.onnx", providers=["CPUExecutionProvider"])
    test = np.load(folder / "test.npz")
    (name,) = (entry.name for entry in session.get_inputs())
    (logits,) = session.run(None, {name: test["images"]})
    accuracy = 100 * np.mean(logits.argmax(1) == test["labels"])
    size = (folder / "small.onnx").stat().st_size / 1000
    print(f"onnxruntime: {accuracy:.1f}% accuracy on {len(logits)} images, a file of {size:.0f} kB")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
