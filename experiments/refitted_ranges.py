"""The accuracy of a plan with ranges for 8 bits, and with ranges calibrated again at the widths of the plan.

    python -m experiments.refitted_ranges --data FOLDER

The plans are those of `results/posttrain-resnet20-adaround.json` near a cost of 2.2%, found with ranges for 8 bits.
They are tested on the first 2,000 test images.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch

import bayesbits as bb
from experiments.posttrain import Bench, attached, parse, say

FRONTS = Path(__file__).parent / "results" / "posttrain-resnet20-adaround.json"
COST = 2.2


def main(arguments: list[str]) -> None:
    bench = Bench(parse([*arguments, "--model", "resnet20", "--test-images", "2000"]))
    methods = json.loads(FRONTS.read_text(encoding="utf-8"))["methods"]
    for method in ("gates", "sensitivity"):
        for run in methods[method]:
            point = min(run["points"], key=lambda one: abs(one["relative_bops"] - COST))
            before, after = (accuracy(bench, run["seed"], point, refit=refit) for refit in (False, True))
            say(f"{method}, seed {run['seed']}, {point['relative_bops']:.2f}%: {before:.2f} -> {after:.2f}")


def accuracy(bench: Bench, seed: int, point: dict[str, Any], *, refit: bool) -> float:
    """The accuracy of the network with a point's widths, on the test images."""
    images = list(bench.examples(seed)[0].split(512))
    compressor = attached(bench, images[0])
    quantizers = compressor.attachment.quantizers
    found = {}
    for bits in sorted({min(16, point["bits"][name]) for name in quantizers} if refit else ()):
        compressor.calibrate(images, "mse", reference_bits=bits)
        found |= {
            name: [parameter.detach().clone() for parameter in quantizer.range_parameters()]
            for name, quantizer in quantizers.items()
            if min(16, point["bits"][name]) == bits
        }
    compressor.calibrate(images, "mse")
    compressor.fix(bb.Plan(point["bits"]))
    with torch.no_grad():
        for name, ends in found.items():
            for parameter, end in zip(quantizers[name].range_parameters(), ends, strict=True):
                parameter.copy_(end)
    compressor.model.eval()
    return bench.accuracy(compressor.model)


if __name__ == "__main__":
    main(sys.argv[1:])
