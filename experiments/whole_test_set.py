"""The network of a run on its whole test set: as trained, as deployed, and as both ONNX files, image by image.

python -m experiments.whole_test_set RUN_FOLDER RESULT.json
"""

import json
import sys
from pathlib import Path

import onnxruntime
import torch

import bayesbits as bb
from bayesbits.deploy.onnx.runtime import machine
from bayesbits.recipes import restore


def main(folder: Path, target: Path) -> None:
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
    record = {
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
    print(json.dumps(record, indent=1))
    target.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
