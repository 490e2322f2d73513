"""Every example runs as it is told in its first lines, and reaches what it is about. Run by `make check`."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.check

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
TESTED = {
    "own_training_loop", "onnxruntime_only", "transformers_trainer", "lightning_callback", "segmentation",
    "language_encoder", "post_training",
}  # fmt: skip


def run(name: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, EXAMPLES / f"{name}.py", folder], capture_output=True, text=True, timeout=600, cwd=folder
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def last_figures(output: str) -> tuple[float, float]:
    """Score and cost in the last line: "97.0% accuracy at 0.58% of the bit operations"."""
    found = re.search(r"([\d.]+)% [a-z ]+ at ([\d.]+)% of the bit operations\n$", output)
    assert found is not None, output
    return float(found[1]), float(found[2])


def test_every_example_is_tested():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == TESTED


def test_own_training_loop_writes_what_onnxruntime_runs_alone(tmp_path):
    output = run("own_training_loop", tmp_path)
    accuracy = re.search(r"compressed: ([\d.]+)% accuracy", output)
    cost = re.search(r"BOPs, ([\d.]+)% of 32 x 32 bits", output)
    assert accuracy is not None
    assert cost is not None
    assert float(accuracy[1]) > 92
    assert float(cost[1]) < 2
    assert "exact tensors      4 with" in output
    assert "integer kernels    3 of 3 layers" in output

    command = (
        "import runpy, sys; runpy.run_path(sys.argv[0], run_name='__main__'); "
        "assert not {'torch', 'bayesbits'} & set(sys.modules)"
    )
    script = EXAMPLES / "onnxruntime_only.py"
    command = f"import sys; sys.argv = [{str(script)!r}, {str(tmp_path)!r}]; {command}"
    done = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert f"onnxruntime: {accuracy[1]}% accuracy on 397 images" in done.stdout


@pytest.mark.parametrize("name", ["transformers_trainer", "lightning_callback"])
def test_a_trainer_goes_on_from_its_checkpoint(name, tmp_path):
    output = run(name, tmp_path)
    epochs = [float(cost) for cost in re.findall(r"epoch \d+: ([\d.]+)% of the bit operations expected", output)]
    numbers = [int(number) for number in re.findall(r"epoch (\d+): ", output)]
    assert numbers == list(range(1, len(epochs) + 1)), "the second call starts behind the first one's last epoch"
    assert epochs == sorted(epochs, reverse=True), "gates go on from where they were"
    score, cost = last_figures(output)
    assert score > 80
    assert cost < 0.7 * epochs[0]


@pytest.mark.parametrize(
    ("name", "score", "cost"), [("segmentation", 80, 2), ("language_encoder", 85, 10), ("post_training", 88, 2)]
)
def test_an_example_ends_with_a_small_network_that_works(name, score, cost, tmp_path):
    found = last_figures(run(name, tmp_path))
    assert found[0] > score
    assert found[1] < cost
