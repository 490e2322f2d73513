"""The trained simulation beside the deployed network, layer by layer with equal inputs.

Every quantizer of the simulation returns the codes that the deployed network has in its place, so that each layer is
judged by what it does itself. What arrives at a quantizer is computed in float64. The deployed code has to be the code
of a number that is no farther from it than float32 arithmetic goes: behind an integer layer a few roundings of the
number itself, and behind float operations what `allowed` says. Where the two codes differ, the exact value lies beside
a tie. Outputs are compared in the same way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from torch import Tensor

from bayesbits.compression.compressor import Compressor
from bayesbits.deploy.network import DeployedNetwork
from bayesbits.deploy.verification.copies import FAR, Call, Copy, ExactCopy
from bayesbits.deploy.verification.deployed import layer_reads, operand_codes, run_deployed
from bayesbits.deploy.verification.derived import Constants
from bayesbits.deploy.verification.feeding import Feeding, Matches, match, quantized, readers, round_to
from bayesbits.deploy.verification.inputs import Batch
from bayesbits.deploy.verification.outputs import Outputs
from bayesbits.deploy.verification.record import QuantizedTensor, Simulated, VerificationError
from bayesbits.deploy.verification.returned import check_returned, check_taken
from bayesbits.deploy.verification.rounding import ROUNDINGS, allowed
from bayesbits.records.integer_network import Grid
from bayesbits.records.plan import Plan


class SimulationProof:
    """Runs both, and compares over batches."""

    def __init__(
        self,
        compressor: Compressor,
        small: DeployedNetwork,
        plan: Plan,
        constants: Mapping[str, Constants],
        grids: Mapping[str, Grid],
    ) -> None:
        self.small, self.grids = small, grids
        self.trained, self.exact = Copy(compressor, plan), ExactCopy(compressor, plan, constants)
        self.places = {**layer_reads(small), **operand_codes(small)}
        self.nodes = {place.node for places in self.places.values() for place in places}
        """What is needed of the deployed program."""
        self.inputs = 0
        self._outputs = Outputs(small)
        self._readers = readers(self.trained.fixed, small.integer.structure.removed)
        self._silent = {name for name, constant in constants.items() if not constant.weight.any()}
        self._matches: Matches | None = None
        self._counts: dict[str, Counter[str]] = {}
        self._wrong: dict[str, str] = {}
        """By tensor what is wrong with it."""

    def run(self, batch: Batch, values: Mapping[str, Tensor], deployed: Sequence[Tensor]) -> None:
        """Compare what the deployed network computed of one batch; raises where it is not what was trained."""
        feeding = self._feeding(values)
        arrived: dict[Call, Tensor] = {}
        alone = self.trained.run(batch, lambda call, x: arrived.update({call: x}))
        if self._matches is None:
            self._matches = match(arrived, self.places, feeding)
        feeding.matches = self._matches
        rounded: dict[Call, Tensor] = {}

        def keep(call: Call, x: Tensor) -> Tensor | None:
            rounded[call] = x
            return feeding.answer(call, x)

        noisy = self.trained.run(batch, keep)
        self._count_end_to_end(feeding, arrived)
        arrived.clear()
        exact = self.exact.run(batch, lambda call, x: self._judge(feeding, call, x, rounded.pop(call)))
        self._check(feeding)
        self.inputs += batch.count
        self._outputs.add(alone, exact, noisy, deployed)

    def run_forward(self, batch: Batch) -> None:
        """Call the deployed network as a user does: it takes and returns what the network itself does."""
        assert self.trained.form is not None
        check_taken(self.small, self.trained.fixed.model)
        check_returned(self.small, batch, self.trained.form)

    def run_ends(self, batch: Batch) -> None:
        """Let every layer that emits codes emit the smallest and the largest everywhere: bounds are compared so, which
        the numbers at hand may not reach."""
        emitting = [layer.name for layer in self.small.integer.layers if layer.output is not None]
        for end, number in (("low", -FAR), ("high", FAR)):
            values, _ = run_deployed(self.small, self.small.bind(batch.args, batch.kwargs), self.nodes, end)
            feeding = self._feeding(values)
            assert self._matches is not None
            feeding.matches = self._matches

            def judge(call: Call, x: Tensor, feeding: Feeding = feeding) -> Tensor | None:
                place = feeding.matches.get(call)
                if place is not None and place.integer:
                    return self._judge(feeding, call, x, x, counted=False)
                return feeding.answer(call, x)

            with self.exact.emitting(emitting, number):
                self.exact.run(batch, judge)
            self._check(feeding, f"; where layers emit their {'smallest' if end == 'low' else 'largest'} codes")

    def _feeding(self, values: Mapping[str, Tensor]) -> Feeding:
        return Feeding(self._readers, values, self.grids, self._silent)

    def _judge(
        self, feeding: Feeding, call: Call, x: Tensor, rounded: Tensor, *, counted: bool = True
    ) -> Tensor | None:
        place = feeding.matches.get(call)
        if place is not None:
            grid = self.grids[place.tensor]
            codes = feeding.codes(call, place, x)
            number = feeding.cut(call, place, x).double()
            room = ROUNDINGS * number.abs() if place.integer else allowed(number, feeding.cut(call, place, rounded))
            exact = number / grid.step
            low, high = (round_to(grid, (number + far) / grid.step) for far in (-room, room))
            mine = round_to(grid, exact)
            right = ((low <= codes) & (codes <= high)) | (codes.isnan() & mine.isnan())
            if not bool(right.all()):
                self._wrong.setdefault(place.tensor, _describe(place.tensor, ~right, codes, exact, mine))
            gone = feeding.gone(call, place, x)
            if counted and gone is not None and bool(gone.any()):
                self._wrong.setdefault(
                    place.tensor, f"{place.tensor}: channels are removed that are not zero in the simulation"
                )
            wrong = int((~right).sum())
            if counted and (feeding.first(place) or wrong):
                differing = int((mine != codes).sum())
                counts = {"codes": codes.numel(), "wrong": wrong, "ties": differing - wrong}
                self._counts.setdefault(place.tensor, Counter()).update(counts)
        return feeding.answer(call, x)

    def _count_end_to_end(self, feeding: Feeding, arrived: Mapping[Call, Tensor]) -> None:
        for call, place in feeding.places():
            x = arrived[call]
            mine = quantized(self.grids[place.tensor], feeding.cut(call, place, x))
            differing = int((mine != feeding.codes(call, place, x)).sum())
            self._counts.setdefault(place.tensor, Counter())["differing_end_to_end"] += differing

    def _check(self, feeding: Feeding, where: str = ", fed the deployed network's own codes") -> None:
        """Raise where anything was wrong; what is missing is named first, because it makes all behind it wrong."""
        if not self._wrong:
            return
        more = f"; {len(self._wrong) - 1} other tensors differ, too" if len(self._wrong) > 1 else ""
        if feeding.missing:
            raise VerificationError(
                f"{feeding.missing[0]}: quantized in the simulation, and read without being quantized in the deployed "
                f"network{more}"
            )
        first = next(iter(self._wrong.values()))
        raise VerificationError(f"{first}{where}{more}: is this the compressor that was deployed?")

    def found(self) -> Simulated:
        """What was counted so far."""
        tensors = tuple(
            QuantizedTensor(name, *(counts[key] for key in ("codes", "ties", "wrong", "differing_end_to_end")))
            for name, counts in self._counts.items()
        )
        return Simulated(self.inputs, tensors, self._outputs.found())


def _describe(tensor: str, wrong: Tensor, codes: Tensor, exact: Tensor, mine: Tensor) -> str:
    first = tuple(wrong.nonzero()[0].tolist())
    return (
        f"{tensor}: {int(wrong.sum())} of {wrong.numel()} codes are not those of the simulation; the first, at "
        f"{first}, is {codes[first]:g} when deployed, and the exact value is {exact[first]:.7g} steps, which makes "
        f"{mine[first]:g}"
    )
