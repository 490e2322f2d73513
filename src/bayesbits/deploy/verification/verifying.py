"""`verify`: the same inputs through the simulation, the deployed network and onnxruntime."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from bayesbits.compressor import Compressor
from bayesbits.deploy.export.optional import require
from bayesbits.deploy.network import DeployedNetwork
from bayesbits.deploy.verification.record import Verification
from bayesbits.deploy.verification.simulated import SimulationCounts
from bayesbits.graph.trace import split_inputs

BATCH = 64


def verify(compressor: Compressor, small: DeployedNetwork, path: str | Path, inputs: Any) -> Verification:
    """Prove that simulation, deployed network and ONNX file agree on these inputs; raises where they do not.

    Weight codes and biases in the file are those of the deployed network. Where there are only integers and
    element-wise arithmetic, every value of the deployed network and of onnxruntime with default options is equal: of
    every layer by itself, fed the deployed network's own values, and of the whole. Behind other float operations
    numbers agree to 1e-4 of the largest. Against the simulation, a decision may flip only where its margin is below the
    error of margins that is measured where decisions agree.

    `inputs` are as for `attach`, with as many examples as are to be compared.
    """
    require("verify")
    import onnx

    from bayesbits.deploy.verification.comparing import Comparison
    from bayesbits.deploy.verification.constants import check_constants
    from bayesbits.deploy.verification.runtime import kernels, machine, optimised_graph

    model = onnx.load(str(path))
    weights, biases = check_constants(model, small.integer)
    comparison = Comparison(small, model)
    simulation = SimulationCounts(compressor, small)
    for args, kwargs in _batches(inputs, small):
        comparison.run(small.bind(args, kwargs))
        simulation.run(args, kwargs)
    return Verification(
        machine=machine(),
        places=comparison.places,
        kernels=kernels(optimised_graph(model), small.integer),
        simulated=simulation.judged(),
        weights=weights,
        biases=biases,
    )


def _batches(inputs: Any, small: DeployedNetwork) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    whole = split_inputs(inputs)
    tensors = [leaf for leaf in tree_leaves(whole) if isinstance(leaf, Tensor)]
    count = tensors[0].shape[0]
    structure = small.integer.structure
    size = BATCH if structure.dynamic_batch else structure.input_shapes[0][0]
    for start in range(0, count, size):

        def part(tensor: Tensor, start: int = start) -> Tensor:
            return tensor[start : start + size] if tensor.dim() and tensor.shape[0] == count else tensor

        yield tree_map_only(Tensor, part, whole)
