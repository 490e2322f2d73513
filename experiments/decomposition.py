"""Keep the paper's decomposition of a tensor of a run, for the figure on the page of results.

    python -m experiments.decomposition RUN TENSOR

RUN is the folder of a finished run, TENSOR the name of a quantized tensor, such as features.0.weight; the command
`bayesbits explain RUN` lists them. Writes experiments/results/decomposition-NAME.json: the terms x_2, eps_4, ... over
values from the smallest to the largest, and the error that is left after each.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from bayesbits.compression.decomposition import decompose
from bayesbits.recipes.data import first_examples, inputs_of
from bayesbits.recipes.run import restore
from bayesbits.recipes.statistics import EXAMPLES
from bayesbits.utils.files import write_atomically
from experiments.keep import RESULTS, command_of, name_of

VALUES = 161


def main(arguments: Sequence[str] | None = None) -> None:
    """Decompose the tensor that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("tensor")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    run = restore(options.run, "cpu")
    inputs = first_examples((inputs_of(batch) for batch in run.loaders.test), EXAMPLES)
    found = asdict(decompose(run.compressor, options.tensor, inputs, examples=VALUES))
    for part in (found, *found["terms"]):
        part["examples"] = [float(f"{value:.5g}") for value in part["examples"]]
    name = name_of(run.recipe)
    content = {"run": name, "seed": run.recipe.seed, "command": command_of(run.recipe), **found}
    path = options.results / f"decomposition-{name}.json"
    write_atomically(path, (json.dumps(content) + "\n").encode())
    print(path)


if __name__ == "__main__":
    main()
