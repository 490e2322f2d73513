"""The trained simulation, compared with the deployed network layer by layer on equal codes.

Every activation quantizer of the simulation returns the deployed network's codes, so that each layer is judged by what
it computes itself and not by differences in front of it. Three runs of the simulation per batch:

1. end to end in float32: differing codes are only counted;
2. on the deployed network's codes in float32: its rounding error sets the tolerance after float operations;
3. on the deployed network's codes in float64: the exact values.

A deployed code is right if it is the code of some number within a tolerance of the exact value. The tolerance is a few
roundings after an integer layer, and `differences.tolerance` after float operations. A right code can differ from the
code of the exact value only next to a rounding tie. Outputs are compared with the same tolerance.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Mapping, Sequence

from torch import Tensor

from bayesbits.compression.compressor import Compressor
from bayesbits.deploy.network import DeployedNetwork
from bayesbits.deploy.verification.compare_outputs import OutputComparison, check_arguments, check_returned
from bayesbits.deploy.verification.compare_tables import TableConstants
from bayesbits.deploy.verification.deployed_codes import (
    DeployedCodes,
    Matches,
    describe_heads,
    describe_layer_inputs,
    match_calls,
    quantize,
    round_to_codes,
)
from bayesbits.deploy.verification.deployed_program import (
    CodesNode,
    layer_inputs,
    only_as_codes,
    operand_codes,
    product_inputs,
    run_deployed,
)
from bayesbits.deploy.verification.derived_constants import LayerConstants
from bayesbits.deploy.verification.differences import LAYER_ROUNDOFF, count_true, tolerance
from bayesbits.deploy.verification.inputs import Batch
from bayesbits.deploy.verification.result import QuantizedTensor, SimulationCounts, VerificationError
from bayesbits.deploy.verification.simulation import BEYOND_ALL_RANGES, Float64Simulation, QuantizerCall, Simulation
from bayesbits.records.integer_network import Grid

_FED = ", fed the deployed network's own codes"


class SimulationComparison:
    """Runs both networks and compares them, batch by batch.

    `fixed` is the copy of the trained network whose constants were checked; it becomes the simulation in float32.
    """

    def __init__(
        self,
        fixed: Compressor,
        small: DeployedNetwork,
        constants: Mapping[str, LayerConstants],
        grids: Mapping[str, Grid],
        tables: Mapping[str, TableConstants],
    ) -> None:
        self.small, self.grids = small, grids
        self.exact = Float64Simulation(Compressor(copy.deepcopy(fixed.model)), constants, tables)
        self.simulation = Simulation(fixed)  # behind the copy, which would have its changed quantizers
        inputs = layer_inputs(small, fixed.topology)
        self.code_nodes = {**inputs, **operand_codes(small), **product_inputs(small)}
        self.nodes = {node.node for nodes in self.code_nodes.values() for node in nodes}
        """The nodes of the deployed program whose values are compared."""
        self.inputs = 0
        self._outputs = OutputComparison(small)
        self._layer_inputs = describe_layer_inputs(fixed, small.integer.structure.removed)
        self._heads = describe_heads(fixed.topology, small.integer.structure.removed)
        self._zero_layers = {name for name, constant in constants.items() if not constant.weight.any()}
        self._only_as_codes = only_as_codes(small)
        self._matches: Matches = {}
        self._operand_channels: dict[QuantizerCall, tuple[int, Tensor]] = {}
        self._counts: dict[str, Counter[str]] = {}
        self._failures: dict[str, str] = {}
        """The failure of each tensor, in words."""

    def compare(self, batch: Batch, values: Mapping[str, Tensor], deployed: Sequence[Tensor]) -> None:
        """Compare one batch with values and outputs of the deployed network; raises where they disagree."""
        codes = self._codes(values)
        inputs: dict[QuantizerCall, Tensor] = {}
        end_to_end = self.simulation.run(batch, lambda call, x: inputs.update({call: x}))
        if not self._matches:
            self._matches.update(match_calls(inputs, self.code_nodes, codes))
        in_float32: dict[QuantizerCall, Tensor] = {}

        def replace(call: QuantizerCall, x: Tensor) -> Tensor | None:
            in_float32[call] = x
            return codes.replacement(call, x)

        rounded = self.simulation.run(batch, replace)
        self._count_end_to_end(codes, inputs)
        inputs.clear()
        exact = self.exact.run(batch, lambda call, x: self._compare_codes(codes, call, x, in_float32.pop(call)))
        self._raise_failures(codes, _FED)
        self._operand_channels.update(codes.operand_channels)
        self.inputs += batch.count
        self._outputs.compare(end_to_end, exact, rounded, deployed)

    def compare_signature(self, batch: Batch) -> None:
        """Call the deployed network as a user does: its arguments and its returned containers are the network's."""
        assert self.simulation.returned is not None
        check_arguments(self.small, self.simulation.fixed.model)
        check_returned(self.small, batch, self.simulation.returned)

    def compare_code_bounds(self, batch: Batch) -> None:
        """Let every layer that emits codes emit its lowest and its highest code everywhere, in both networks.

        This compares the bounds, which the values of a batch need not reach.
        """
        emitting = [part.name for part in self.small.integer.parts if part.output is not None]
        for bound, value in (("low", -BEYOND_ALL_RANGES), ("high", BEYOND_ALL_RANGES)):
            values, _ = run_deployed(self.small, self.small.bind(batch.args, batch.kwargs), self.nodes, bound)
            codes = self._codes(values)
            codes.operand_channels.update(self._operand_channels)

            def replace(call: QuantizerCall, x: Tensor, codes: DeployedCodes = codes) -> Tensor | None:
                node = codes.matches.get(call)
                if node is not None and node.from_integer_layer:
                    return self._compare_codes(codes, call, x, x, counted=False)
                return codes.replacement(call, x)

            with self.exact.emitting(emitting, value):
                self.exact.run(batch, replace)
            extreme = "smallest" if bound == "low" else "largest"
            self._raise_failures(codes, f"; where layers emit their {extreme} codes")

    def result(self) -> SimulationCounts:
        """The counts so far."""
        tensors = tuple(
            QuantizedTensor(name, *(counts[key] for key in ("codes", "ties", "wrong", "differing_end_to_end")))
            for name, counts in self._counts.items()
        )
        return SimulationCounts(self.inputs, tensors, self._outputs.result())

    def _codes(self, values: Mapping[str, Tensor]) -> DeployedCodes:
        codes = DeployedCodes(
            self._layer_inputs, values, self.grids, self._zero_layers, self._matches, self._only_as_codes, self._heads
        )
        codes.prepare(node for nodes in self.code_nodes.values() for node in nodes)
        return codes

    def _compare_codes(
        self, codes: DeployedCodes, call: QuantizerCall, x: Tensor, in_float32: Tensor, *, counted: bool = True
    ) -> Tensor | None:
        """Compare the codes of one call, whose exact input is x; returns the output of the quantizer."""
        node = codes.matches.get(call)
        if node is not None:
            self._compare_at(codes, call, node, x, in_float32, counted)
        return codes.replacement(call, x)

    def _compare_at(
        self, codes: DeployedCodes, call: QuantizerCall, node: CodesNode, x: Tensor, in_float32: Tensor, counted: bool
    ) -> None:
        grid, tensor = codes.grid(node), node.tensor
        found, exact = codes.codes(call, node, x), codes.kept(call, node, x).double()
        expected = round_to_codes(grid, exact / grid.step)
        unequal = expected != found  # all others are right
        differing, wrong = count_true(unequal), 0
        if differing:
            if node.from_integer_layer:
                allowed = LAYER_ROUNDOFF * exact[unequal].abs()
            else:
                allowed = tolerance(exact, codes.kept(call, node, in_float32))[unequal]
            low, high = (round_to_codes(grid, (exact[unequal] + error) / grid.step) for error in (-allowed, allowed))
            ours = found[unequal]
            wrong_ones = ~((low <= ours) & (ours <= high)) & ~(ours.isnan() & expected[unequal].isnan())
            wrong = int(wrong_ones.sum())
            if wrong:
                places = unequal.masked_scatter(unequal, wrong_ones)
                self._failures.setdefault(tensor, _describe(tensor, places, found, exact / grid.step, expected))
        if not counted:
            return
        removed = codes.removed(call, node, x)
        if removed is not None and count_true(removed):
            self._failures.setdefault(tensor, f"{tensor}: channels are removed that are not zero in the simulation")
        if codes.is_first(node) or wrong:
            counts = {"codes": found.numel(), "wrong": wrong, "ties": differing - wrong}
            self._counts.setdefault(tensor, Counter()).update(counts)

    def _count_end_to_end(self, codes: DeployedCodes, inputs: Mapping[QuantizerCall, Tensor]) -> None:
        for call, node in codes.matched():
            x = inputs[call]
            simulated = quantize(codes.grid(node), codes.kept(call, node, x))
            differing = count_true(simulated != codes.codes(call, node, x))
            self._counts.setdefault(node.tensor, Counter())["differing_end_to_end"] += differing

    def _raise_failures(self, codes: DeployedCodes, where: str) -> None:
        """Raise where anything was wrong; a missing quantizer is named first, because it makes all tensors after it
        wrong."""
        if not self._failures:
            return
        more = f"; {len(self._failures) - 1} other tensors differ, too" if len(self._failures) > 1 else ""
        if codes.missing:
            raise VerificationError(
                f"{codes.missing[0]}: quantized in the simulation, and read without being quantized in the deployed "
                f"network{more}"
            )
        first = next(iter(self._failures.values()))
        raise VerificationError(f"{first}{where}{more}: is this the compressor that was deployed?")


def _describe(tensor: str, wrong: Tensor, codes: Tensor, exact: Tensor, expected: Tensor) -> str:
    first = tuple(wrong.nonzero()[0].tolist())
    return (
        f"{tensor}: {int(wrong.sum())} of {wrong.numel()} codes are not those of the simulation; the first, at "
        f"{first}, is {codes[first]:g} when deployed, and the exact value is {exact[first]:.7g} steps, which rounds to "
        f"{expected[first]:g}"
    )
