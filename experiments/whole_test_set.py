"""Networks of runs on their whole test set: as trained, as deployed, and as both ONNX files, image by image.

    python -m experiments.whole_test_set RUN_FOLDER [RUN_FOLDER ...] [--results experiments/results]

Each becomes a file that is called after its recipe, its settings and its seed, as those of `experiments.keep` are, such
as `whole-test-set-cifar10-vgg7-mu0.01-seed0.json`. The ONNX files are written into the folder of the run.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnxruntime
import torch

import bayesbits as bb
from bayesbits.deploy.onnx.runtime import machine
from bayesbits.recipes import restore
from bayesbits.utils.files import write_atomically
from experiments.keep import RESULTS, name_of


def compare(folder: Path) -> tuple[str, dict[str, Any]]:
    """The name of a finished run, and what its network decides in all its forms."""
    run = restore(folder, "cpu")
    small = bb.deploy(run.compressor)
    sessions = {}
    for form in ("fast", "compact"):
        path = folder / f"{form}.onnx"
        bb.export_onnx(small, run.loaders.example, path, form)
        sessions[form] = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    decisions: dict[str, list[torch.Tensor]] = {name: [] for name in ("labels", "trained", "deployed", *sessions)}
    differing = dict.fromkeys(sessions, 0)
    with torch.no_grad():
        for images, labels in run.loaders.test:
            deployed = small(images)
            decisions["labels"].append(labels)
            decisions["trained"].append(run.compressor.model(images).argmax(1))
            decisions["deployed"].append(deployed.argmax(1))
            for form, session in sessions.items():
                (name,) = [entry.name for entry in session.get_inputs()]
                logits = torch.from_numpy(session.run(None, {name: images.numpy()})[0])
                differing[form] += int((logits != deployed).any(1).sum())
                decisions[form].append(logits.argmax(1))
    found = {name: torch.cat(parts) for name, parts in decisions.items()}
    return f"{name_of(run.recipe)}-seed{run.recipe.seed}", {
        "recipe": run.result.recipe,
        "mu": run.result.mu,
        "seed": run.result.seed,
        "images": len(found["labels"]),
        "accuracy": {
            name: 100 * (found[name] == found["labels"]).float().mean().item() for name in found if name != "labels"
        },
        "decisions_unlike_deployed": {
            name: int((found[name] != found["deployed"]).sum()) for name in ("trained", *sessions)
        },
        "images_with_logits_unlike_deployed": differing,
        "machine": str(machine()),
    }


def write(name: str, record: dict[str, Any], results: Path = RESULTS) -> Path:
    """Write the record of a run; returns its path."""
    path = results / f"whole-test-set-{name}.json"
    write_atomically(path, (json.dumps(record, indent=1) + "\n").encode())
    return path


def main(arguments: Sequence[str] | None = None) -> None:
    """Compare the networks of the folders that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path, metavar="RUN_FOLDER")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    for folder in options.folders:
        name, record = compare(folder)
        path = write(name, record, options.results)
        print(path, json.dumps(record, indent=1), flush=True)


if __name__ == "__main__":
    main()
