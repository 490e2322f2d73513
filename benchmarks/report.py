"""The time of the page about a run: LeNet-5 and ResNet-50, with curves, gates and statistics of every tensor."""

import json
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

import bayesbits as bb
from bayesbits.compression.statistics import measure_statistics
from bayesbits.recipes import load, to_toml
from bayesbits.recipes.metrics import Score
from bayesbits.recipes.result import make_result
from bayesbits.report import write_report
from bayesbits.zoo import models

Row = dict[str, Any]

LIMIT = 10.0
"""The seconds that the page about a run of ResNet-50 may take."""
SHAPES = {"lenet5": (2, 1, 28, 28), "resnet50": (2, 3, 64, 64)}


def report(smoke: bool) -> list[Row]:
    """Seconds and size of a page, the smallest of several times; reading the run's folder is part of it."""
    rows: list[Row] = []
    for name, shape in SHAPES.items():
        if smoke and name != "lenet5":
            continue
        with tempfile.TemporaryDirectory() as folder:
            layers = write_run(Path(folder), name, shape)
            seconds = []
            for _ in range(1 if smoke else 3):
                start = time.perf_counter()
                page = write_report(folder)
                seconds.append(time.perf_counter() - start)
            size = round(page.stat().st_size / 1e6, 2)
            rows.append({"network": name, "layers": layers, "seconds": round(min(seconds), 2), "MB": size})
    rows[-1]["limit"] = f"{LIMIT:g} s"
    return rows


def write_run(folder: Path, name: str, shape: tuple[int, ...]) -> int:
    """A run of an untrained network with 4-bit weights and 8-bit activations; returns its number of layers."""
    torch.manual_seed(0)
    inputs = torch.randn(shape)
    compressor = bb.attach(models.create(name).eval(), inputs[:1], bb.Spec(bits=(2, 4, 8)))
    compressor.calibrate([inputs])
    topology = compressor.topology
    plan = bb.Plan.uniform(topology, weights=4, activations=8)
    compressor.fix(plan)
    recipe, dense = load("digits-lenet5"), bb.Plan.uniform(topology, 32, 32, 32, None)
    result = make_result(
        recipe, compressor.cost(plan), compressor.cost(dense), topology,
        scores=(Score("accuracy", 75.0, 76.0, "%", higher_is_better=True),), seconds=1.0, device="cpu", versions={},
    )  # fmt: skip
    topology.save(folder / "topology.json")
    plan.save(folder / "plan.json")
    result.save(folder / "result.json")
    (folder / "recipe.toml").write_text(to_toml(recipe))
    measure_statistics(compressor, inputs).save(folder / "statistics.json")
    with (folder / "metrics.jsonl").open("w") as file:
        for step in range(1, 101):
            where = {"phase": "search", "epoch": step // 5, "step": step}
            closing = {str(bits): round(1 - step / 100, 4) for bits in (4, 8)}
            gates = {"bits": dict(plan.bits), "probabilities": dict.fromkeys(plan.bits, closing), "kept": {}}
            for values in (
                {"event": "train", "task_loss": 1 / step, "expected_relative_bops": 100 / step},
                {"event": "gates", "relative_bops": 100 / step, **gates},
            ):
                file.write(json.dumps(where | values) + "\n")
    return len(topology.layers)
