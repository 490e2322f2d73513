"""Networks that nobody here wrote, as a user of onnxruntime takes them: from attaching to files that are proven.

    python -m experiments.foreign_files [NAME ...] [--plan random | 8/8] [--json FILE]

The networks are those of `experiments.foreign_configs`, whose batch norms are like trained ones. Each is attached with
`Spec.for_backend("onnxruntime")`, calibrated and deployed; saved, loaded, exported and verified on two examples; and
its file runs on one and on four examples, beside the deployed network. The plan "random" has two steps of training,
widths of 2, 4 and 8 bits, 30% of the removable channels and heads gone, and both forms of the file; "8/8" is uniform.

Prints a line for each network, and writes `experiments/results/foreign-networks.json`; networks that are not named keep
the rows that they have. The error of one network does not stop the others.
"""

import argparse
import json
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import bayesbits as bb
from bayesbits.deploy.onnx.runtime import Session
from bayesbits.utils.batches import split_inputs
from bayesbits.utils.files import write_atomically
from bayesbits.utils.torch_private import tree_leaves, tree_map_only
from experiments.foreign_configs import NETWORKS, call, create
from experiments.foreign_networks import random_plan

RESULTS = Path(__file__).parent / "results" / "foreign-networks.json"
LONGEST_ERROR = 600
PLANS = ("random", "8/8")


def numbers_of(output: Any) -> Tensor:
    """All float numbers that a network returns, in one row."""
    found = [x for x in tree_leaves(output) if isinstance(x, Tensor) and x.is_floating_point()]
    return torch.cat([x.detach().double().flatten() for x in found])


def distance(one: Any, other: Any) -> float:
    """How far two outputs are apart, relative to the second."""
    reference = numbers_of(other)
    return float((numbers_of(one) - reference).norm() / reference.norm().clamp_min(1e-30))


def first_examples(inputs: Any, count: int) -> Any:
    """The first examples of the inputs of a network."""
    return tree_map_only(Tensor, lambda x: x[:count], inputs)


def train(model: nn.Module, inputs: Any, compressor: bb.Compressor, steps: int = 2) -> None:
    """Steps of training with some loss and the penalty."""
    optimizer = torch.optim.SGD(compressor.parameter_groups(), lr=1e-5)
    model.train()
    for _ in range(steps):
        optimizer.zero_grad()
        outputs = [x for x in tree_leaves(call(model, inputs)) if isinstance(x, Tensor) and x.requires_grad]
        loss = torch.stack([x.square().mean() for x in outputs]).sum()
        (loss + 1e-3 * compressor.penalty()).backward()
        optimizer.step()
    model.eval()


def plan_for(compressor: bb.Compressor, model: nn.Module, inputs: Any, kind: str) -> bb.Plan:
    """The plan of a network that is attached and calibrated."""
    topology, quantizers = compressor.topology, compressor.attachment.quantizers
    if kind == "8/8":
        return bb.Plan.uniform(topology, 8, 8)
    train(model, inputs, compressor)
    plan = random_plan(topology)
    return bb.Plan({tensor: bits if tensor in quantizers else 32 for tensor, bits in plan.bits.items()}, plan.kept)


def runs_like(small: bb.DeployedNetwork, path: Path, inputs: Any) -> float:
    """How far a file's outputs are from the deployed network's, when all of it runs on one and on four examples."""
    session, worst = Session(path), 0.0
    for count in (1, 4) if small.integer.structure.dynamic_batch else (4,):
        part = first_examples(inputs, count)
        feeds = dict(zip(session.inputs, (x.numpy() for x in small.bind(*split_inputs(part))), strict=True))
        found = [torch.from_numpy(output) for output in session.run(feeds).values()]
        with torch.no_grad():
            worst = max(worst, distance(found, call(small, part)))
    return worst


def run_stages(name: str, kind: str, folder: Path) -> dict[str, Any]:
    """All stages for one network: its row, which names the stage that failed and why."""
    stage, row = "create", dict[str, Any]()
    try:
        model, inputs = create(name)
        with torch.no_grad():
            in_float = call(model, inputs)
        stage = "attach"
        compressor = bb.attach(model, inputs, bb.Spec.for_backend("onnxruntime"))
        topology = compressor.topology
        row["attached"] = 100 * sum(layer.macs for layer in topology.layers) / topology.macs
        row["removable"] = [len(topology.removable_groups), len(topology.groups)]
        stage = "calibrate"
        compressor.calibrate([inputs])
        stage = "plan"
        compressor.fix(plan_for(compressor, model, inputs, kind))
        stage = "deploy"
        deployed = bb.deploy(compressor)
        row["macs_left"] = deployed.macs / topology.macs
        stage = "save"
        bb.save(deployed, folder / "network")
        small = bb.load(folder / "network")
        two = first_examples(inputs, 2) if small.integer.structure.dynamic_batch else inputs
        for form in ("fast", "compact") if kind == "random" else ("fast",):
            stage = f"export {form}"
            path = folder / f"{form}.onnx"
            bb.export_onnx(small, inputs, path, form=form)
            stage = f"verify {form}"
            found = bb.verify(compressor, small, path, two)
            row["ties"] = row.get("ties", 0) + found.simulated.ties
            stage = f"run {form}"
            row["file_error"] = max(row.get("file_error", 0.0), runs_like(small, path, inputs))
        row["integer_layers"] = [len(found.integer_layers), len(found.kernels)]
        row["float_layers"] = {kernel.layer: kernel.reason for kernel in found.kernels if not kernel.integer}
        with torch.no_grad():
            row["float_error"] = distance(call(small, inputs), in_float)
        row["passed"] = True
    except Exception as error:
        row |= {"passed": False, "stage": stage, "error": f"{type(error).__name__}: {str(error)[:LONGEST_ERROR]}"}
    return row


def main() -> None:
    """Run the networks that are named, or all, and keep their rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", choices=[*NETWORKS, []], metavar="NAME", help=", ".join(NETWORKS))
    parser.add_argument("--plan", choices=PLANS, default="random", help="the plan, by default %(default)s")
    parser.add_argument("--json", type=Path, default=RESULTS, help="the file of the rows")
    options = parser.parse_args()
    for name in options.names or NETWORKS:
        start = time.process_time()
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            row = {"network": name, "plan": options.plan} | run_stages(name, options.plan, Path(folder))
        row["warnings"] = list(dict.fromkeys(f"{each.category.__name__}: {each.message}" for each in caught))
        row["seconds"] = round(time.process_time() - start, 1)
        keep(row, options.json)
        print(json.dumps(row), flush=True)


def keep(row: dict[str, Any], path: Path) -> None:
    """Put a row into the file in place of an earlier one of the same network and plan; the rows are sorted."""
    rows = json.loads(path.read_text()) if path.exists() else []
    kept = [each for each in rows if (each["network"], each["plan"]) != (row["network"], row["plan"])]
    ordered = sorted([*kept, row], key=lambda each: (list(NETWORKS).index(each["network"]), each["plan"]))
    lines = ",\n".join(json.dumps(each) for each in ordered)
    write_atomically(path, f"[\n{lines}\n]\n".encode())


if __name__ == "__main__":
    main()
