"""`python -m tests.wheel`: build the wheel, install it into an empty environment, and use it there.

Extras are added one after the other, so that torch is installed once. After each step the command line, the imports and
a tiny network, attached and deployed, have to work with what is installed by then.
"""

import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

ROOT = Path(__file__).parent.parent
STEPS = ("", "data", "onnx", "examples", "docs", "test")

USE = """
import importlib.util
import sys

import torch
from jinja2 import PackageLoader

import bayesbits as bb

assert "site-packages" in bb.__file__, bb.__file__
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(144, 2))
images = torch.randn(8, 1, 8, 8)
compressor = bb.attach(model, images[:1], bb.Spec(bits=(2, 4, 8)))
compressor.calibrate([images])
compressor.fix(bb.Plan.uniform(compressor.topology, residual_bits=8))
small = bb.deploy(compressor)
assert PackageLoader("bayesbits", "report/templates").list_templates()
bb.save(small, "small")
assert torch.equal(bb.load("small")(images), small(images))

installed = importlib.util.find_spec("onnxruntime") is not None
assert installed == (sys.argv[1] not in ("", "data")), "the extra onnx, and no other, brings onnxruntime"
if installed:
    bb.export_onnx(small, images[:1], "small.onnx")
    assert bb.verify(compressor, small, "small.onnx", images).failure is None
else:
    try:
        bb.export_onnx(small, images[:1], "small.onnx")
    except ImportError as error:
        assert "bayesbits[onnx]" in str(error), error
    else:
        raise AssertionError("export_onnx did not ask for the extra onnx")
if sys.argv[1] in ("", "data"):
    assert (importlib.util.find_spec("sklearn") is not None) == (sys.argv[1] == "data")
"""


def run(*command: object, cwd: Path) -> str:
    """What a command prints; its errors are shown."""
    done = subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, ROOT, cwd=folder)
        (wheel,) = folder.glob("*.whl")
        venv.create(folder / "environment", with_pip=True)
        python = folder / "environment" / "bin" / "python"
        for extra in STEPS:
            started = time.monotonic()
            what = f"{wheel}[{extra}]" if extra else wheel
            run(python, "-m", "pip", "install", "--quiet", "-c", ROOT / "constraints.txt", what, cwd=folder)
            version = run(python.parent / "bayesbits", "--version", cwd=folder).strip()
            run(python.parent / "bayesbits", "recipes", cwd=folder)
            run(python, "-W", "ignore", "-c", USE, extra, cwd=folder)
            print(f"{version} with {extra or 'no extra'}: works ({time.monotonic() - started:.0f} s)", flush=True)


if __name__ == "__main__":
    main()
