"""Tables of embeddings and weights of recurrent layers: derived a second time from plan and weights, and compared with
simulation and deployment.

As for layers (see `derived_constants`), the derivation imports nothing that `deploy` computes codes with.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from bayesbits.compression.compressor import Compressor
from bayesbits.deploy.modules import TABLES, target_of
from bayesbits.deploy.network import DeployedNetwork
from bayesbits.deploy.verification.differences import LAYER_ROUNDOFF, ArrayComparison
from bayesbits.deploy.verification.result import VerificationError
from bayesbits.nn.table import AttachedEmbedding, AttachedTable
from bayesbits.records.plan import Plan
from bayesbits.records.topology import Table

Array = NDArray[Any]

_FLOAT32 = np.float32
_EDGE = np.float32(1 - 1e-7)
"""Values are clipped to this part of the range."""
_LARGEST_CODED_BITS, _LARGEST_GRID_BITS = 16, 24
_DEPLOYED = ArrayComparison("in the deployed network", "from plan and weights")


@dataclass(frozen=True)
class TableConstants:
    """The constants of a table."""

    bits: int
    numbers: Array
    """The rows as they are read: code times step, in float32."""
    codes: Array | None
    """The codes; None above 16 bits."""
    steps: Array | None
    """The step, or one for each row."""


def derive_tables(fixed: Compressor, plan: Plan) -> dict[str, TableConstants]:
    """The constants of every table that is quantized, by name; `fixed` is the trained network with its plan fixed."""
    found = {}
    for parameter, table in fixed.topology.table_tensors.items():
        quantizer = fixed.attachment.quantizers.get(parameter)
        if quantizer is not None and parameter in plan.bits:
            weight = fixed.model.get_parameter(parameter).detach()
            found[table.name] = _derive(weight.numpy(), quantizer.beta.detach().numpy(), plan.bits[parameter])
    return found


def _derive(weight: Array, beta: Array, bits: int) -> TableConstants:
    rows = beta.reshape(-1, 1) if beta.size > 1 else beta.reshape(())
    clipped = np.clip(weight, -(rows * _EDGE), rows * _EDGE)
    if bits > _LARGEST_GRID_BITS:
        return TableConstants(bits, clipped, None, None)
    step = np.asarray(rows * _FLOAT32(2) / _FLOAT32(2**bits - 1))
    high = 2 ** (bits - 1) - 1
    codes = np.clip(np.rint(clipped / step), -high, high)
    numbers = codes.astype(_FLOAT32) * step
    if bits > _LARGEST_CODED_BITS:
        return TableConstants(bits, numbers, None, None)
    return TableConstants(bits, numbers, codes.astype(np.int64), step.reshape(-1))


def check_simulated_tables(fixed: Compressor, tables: Mapping[str, TableConstants]) -> None:
    """Raise at the first table of the simulation whose rows are not the derived ones."""
    for table in fixed.topology.tables:
        for name in table.modules if table.name in tables else ():
            rows = _simulated(fixed.model.get_submodule(name), table).numpy()
            expected = tables[table.name].numbers
            wrong = int((np.abs(rows - expected) > LAYER_ROUNDOFF * np.abs(expected)).sum())
            if wrong:
                raise VerificationError(
                    f"{table.name}: {wrong} of {rows.size} numbers of the table that it was trained with are not those "
                    "that plan and weights give"
                )


def _simulated(module: nn.Module, table: Table) -> Tensor:
    """The numbers of a table that the code of its module reads when it runs."""
    if not isinstance(module, AttachedTable):
        raise VerificationError(f"{table.name}: the simulation reads its rows without rounding them")
    with torch.no_grad():
        if isinstance(module, AttachedEmbedding):
            # Not by calling the module: its output may be quantized besides, as an operand of an addition.
            return AttachedEmbedding.forward(module, torch.arange(table.rows))
        assert isinstance(module, nn.RNNBase)
        seen = _RecurrentWeights()
        with seen:
            type(module).forward(module, torch.zeros(1, 1, module.input_size))
        own = [parameter for group in module.all_weights for parameter in group]
        (place,) = (place for place, one in enumerate(own) if one is getattr(module, table.attribute))
        return seen.weights[place].detach()


class _RecurrentWeights(TorchFunctionMode):
    """Keeps the weights that torch's recurrent functions are called with."""

    weights: tuple[Tensor, ...] = ()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu):
            self.weights = tuple(args[2])
        return func(*args, **(kwargs or {}))


def check_deployed_tables(small: DeployedNetwork, tables: Mapping[str, TableConstants]) -> int:
    """Raise at the first table of the deployed network that is not the derived one; returns how many weights are equal.

    The modules that execute the record have to hold its tensors.
    """
    network, modules = small.integer, dict[str, Any](small.program.named_modules())
    found = {table.name for table in network.tables}
    for name in sorted(found ^ tables.keys()):
        here, there = ("quantized", "in float") if name in found else ("in float", "quantized")
        raise VerificationError(
            f"{name}: this table is {here} in the deployed network, and {there} by plan and weights; is this the "
            "compressor that was deployed?"
        )
    count = 0
    for table in network.tables:
        derived, module = tables[table.name], modules[target_of(TABLES, table.name)]
        if (table.bits, module.table) != (derived.bits, table):
            raise VerificationError(
                f"{table.name}: it has {table.bits} bits when deployed, and {derived.bits} by the plan"
            )
        wanted = {"codes": derived.codes, "steps": derived.steps}
        wanted |= {"weight": derived.numbers} if derived.codes is None else {}
        for what, expected in wanted.items():
            for tensor in (network.tensors.get(f"{table.name}.{what}"), getattr(module, what)):
                if (tensor is None) != (expected is None):
                    raise VerificationError(f"{table.name}: the deployed network has no {what}, or should have none")
                if tensor is not None and expected is not None:
                    _DEPLOYED.check_equal(table.name, f"{what} of the table", tensor.numpy(), expected)
        count += derived.numbers.size
    return count
