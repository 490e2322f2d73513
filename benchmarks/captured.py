"""What torch.compile captures of a training step: whether a change can have touched its speed at all.

A step is timed on a GPU, and often changed on a machine without one. Two commits whose rows here are equal run the
same operations in the same order, forward and backward, so that what was timed at one holds for the other. The kernels
of `functional` are one operation each: a change inside of them is not seen here. Compare rows of one version of torch,
as another one captures other operations.
"""

import hashlib
from collections.abc import Callable
from functools import partial
from unittest.mock import patch

import torch
from functorch.compile import make_boxed_func
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd
from torch.fx import GraphModule

from bayesbits.functional import compiled
from benchmarks.training import Row, make_step

CONTENDERS = ("float", "bayesbits", "fake-quantization")
SIZES = (("vgg7", 4, 32), ("resnet18", 2, 64))


def captured(smoke: bool) -> list[Row]:
    """The operations of a training step that torch.compile captures on a CPU, and a digest of them."""
    if torch.cuda.is_available():
        return []  # where a step is recorded as well, and `training` times it
    sizes = [("lenet5", 2, 28)] if smoke else SIZES
    return [row_of(name, model, *size) for model, *size in sizes for name in CONTENDERS]


def row_of(name: str, model: str, batch: int, pixels: int) -> Row:
    """How much a contender's step is, and a digest of it."""
    graphs = graphs_of(name, model, batch, pixels)
    text = "\n".join(graph.code for graph in graphs)
    return {
        "network": model,
        "batch": batch,
        "what": name,
        "operations": sum(node.op == "call_function" for graph in graphs for node in graph.graph.nodes),
        "digest": hashlib.sha256(text.encode()).hexdigest()[:16],
    }


def graphs_of(name: str, model: str, batch: int, pixels: int) -> list[GraphModule]:
    """The graphs of a contender's first step, forward and backward."""
    torch.manual_seed(0)
    graphs: list[GraphModule] = []

    def keep(graph: GraphModule, _: list[Tensor]) -> Callable[..., object]:
        graphs.append(graph)
        return make_boxed_func(graph.forward)

    backend = aot_autograd(fw_compiler=keep, bw_compiler=keep)
    with compiled.never_compiled(), patch("torch.compile", partial(torch.compile, backend=backend)):
        make_step(name, model, batch, pixels, compile_on_cpu=True)()
    torch._dynamo.reset()
    if len(graphs) != 2:
        raise RuntimeError(f"a step of {model} ({name}) is {len(graphs)} graphs, and not one forward and one backward")
    return graphs
