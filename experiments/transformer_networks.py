"""Networks of `transformers` with random weights: how much of each computes in integers, and which sizes it takes.

    python -m experiments.transformer_networks [NAME ...] [--json FILE]

Each network is attached, trained for one step, given a plan of 8 bits, deployed, saved, loaded, exported, and verified
at the sizes of its example and at smaller ones, where its sizes may change: once with products of two activations in
float, which is the default, and once with their operands quantized. Prints a line for each network, and writes
`experiments/results/transformer-networks.json`, from which the page of results has its table. The error of one network
does not stop the others; networks that are not named keep the rows that they have.
"""

import argparse
import json
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import torch

import bayesbits as bb
from bayesbits.utils.files import write_atomically
from experiments.foreign_networks import train_one_step
from experiments.transformer_configs import NETWORKS, create

RESULTS = Path(__file__).parent / "results" / "transformer-networks.json"
LONGEST_ERROR = 600


def smaller_inputs(small: bb.DeployedNetwork, inputs: dict[str, Any]) -> dict[str, Any]:
    """The inputs with every size that may change cut to about one half; a batch to two examples."""
    structure = small.integer.structure
    given = {structure.inputs.index(name): name for name in inputs if name in structure.inputs}
    cut = dict(inputs)
    for size in structure.sizes or ():
        for number, dim in size.places:
            tensor = cut[given[number]]
            wanted = 2 if dim == 0 else size.smaller(tensor.shape[dim]) or tensor.shape[dim]
            cut[given[number]] = tensor.narrow(dim, 0, min(wanted, tensor.shape[dim]))
    return cut


def shapes_of(inputs: dict[str, Any]) -> str:
    """The shapes of the tensors of a call."""
    shapes = ["x".join(map(str, x.shape)) for x in inputs.values() if isinstance(x, torch.Tensor)]
    return ", ".join(dict.fromkeys(shapes))


def run_stages(name: str, folder: Path, *, activation_products: bool = False) -> dict[str, Any]:
    """All stages for one network: its row of the table, or the stage that failed and why."""
    stage, row = "create", dict[str, Any]()
    try:
        model, inputs = create(name)
        row["parameters"] = sum(parameter.numel() for parameter in model.parameters())
        stage = "attach"
        compressor = bb.attach(model, inputs, bb.Spec(bits=(4, 8), activation_products=activation_products))
        topology = compressor.topology
        row["attached"] = 100 * sum(topology.macs_of.values()) / topology.macs
        compressor.calibrate([inputs])
        stage = "step"
        train_one_step(model, inputs, compressor)
        stage = "plan"
        compressor.fix(bb.Plan.uniform(topology, 8, 8))
        stage = "deploy"
        small = bb.deploy(compressor, dynamic_shapes="all")
        structure = small.integer.structure
        row["sizes"] = [str(size) for size in structure.sizes or ()]
        row["fixed"] = list(structure.fixed_sizes)
        integer = sum(part.macs for part in small.integer.parts if part.arithmetic == "integer")
        row["integer"] = 100 * integer / small.macs
        with torch.no_grad():
            row["returns"] = type(small(**inputs)).__name__
            if type(small(**inputs)) is not type(model(**inputs)):
                raise TypeError(f"the deployed network returns a {row['returns']}")
        stage = "save"
        bb.save(small, folder / "small")
        again = bb.load(folder / "small")
        stage = "export"
        path = folder / "small.onnx"
        bb.export_onnx(again, inputs, path)
        row["verified"] = []
        other = smaller_inputs(again, inputs)
        for call in (inputs, other) if shapes_of(other) != shapes_of(inputs) else (inputs,):
            stage = f"verify at {shapes_of(call)}"
            bb.verify(compressor, again, path, call)
            row["verified"].append(shapes_of(call))
        return row | {"passed": True}
    except Exception as error:
        first = (str(error).strip() or "no message").splitlines()[0]
        return row | {"passed": False, "stage": stage, "error": f"{type(error).__name__}: {first[:LONGEST_ERROR]}"}


def run_network(name: str) -> dict[str, Any]:
    """The row of a network; under "products" is that with quantized operands of products, where the first passed."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        row = run_stages(name, Path(folder) / "float")
        if row["passed"]:
            row["products"] = run_stages(name, Path(folder) / "quantized", activation_products=True)
    return row


def main() -> None:
    """Run the networks that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", choices=[*NETWORKS, []], metavar="NAME", help=", ".join(NETWORKS))
    parser.add_argument("--json", type=Path, default=RESULTS, help="the file with the rows of all networks")
    options = parser.parse_args()
    kept = json.loads(options.json.read_text()) if options.json.exists() else {"networks": {}}
    for name in options.names or NETWORKS:
        start = time.process_time()
        row = run_network(name)
        kept["networks"][name] = row
        kept["versions"] = {package: __import__(package).__version__ for package in ("torch", "transformers")}
        ordered = {network: kept["networks"][network] for network in NETWORKS if network in kept["networks"]}
        write_atomically(options.json, (json.dumps(kept | {"networks": ordered}, indent=1) + "\n").encode())
        print(f"{name}: {json.dumps(row)} ({time.process_time() - start:.0f} s of CPU time)", flush=True)


if __name__ == "__main__":
    main()
