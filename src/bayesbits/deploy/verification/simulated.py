"""The trained simulation beside the deployed network: differing codes, errors and flipped decisions, counted."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from bayesbits.compressor import Compressor
from bayesbits.deploy.network import DeployedNetwork
from bayesbits.deploy.verification.record import TOLERANCE, Simulated, VerificationError
from bayesbits.deploy.verification.reference import Simulation, layer_inputs, run_deployed

MOST_DIFFERING = 0.01
"""The part of the activation codes that may differ: ties, and what follows from them in deep networks."""


class Decisions:
    """Counts decisions that flipped, and judges them by how much others were off."""

    def __init__(self) -> None:
        self.inputs = self.flipped = 0
        self.largest_error = self.largest_output = 0.0
        self.margin_error = 0.0
        """Where decisions agree, by how much the distance between two outputs of an input is off at most."""
        self.flipped_margin = 0.0
        """The largest distance between best and second, in the simulation, of a decision that flipped."""

    def add(self, simulated: Tensor, deployed: Tensor) -> None:
        """Count a batch of outputs; what is no row of classes for each input only has an error, and decides nothing."""
        self.inputs += len(simulated)
        errors = deployed - simulated
        self.largest_error = max(self.largest_error, float(errors.abs().max()))
        self.largest_output = max(self.largest_output, float(simulated.abs().max()))
        if simulated.dim() != 2 or simulated.shape[-1] < 2:
            return
        best = simulated.topk(2, dim=-1).values
        flipped = simulated.argmax(-1) != deployed.argmax(-1)
        self.flipped += int(flipped.sum())
        if flipped.any():
            self.flipped_margin = max(self.flipped_margin, float((best[..., 0] - best[..., 1])[flipped].max()))
        if not flipped.all():
            spread = errors.amax(-1) - errors.amin(-1)
            self.margin_error = max(self.margin_error, float(spread[~flipped].max()))

    def check(self) -> None:
        """Raise where a decision flipped that was clearer than what others were off by."""
        if self.flipped_margin > self.margin_error:
            raise VerificationError(
                f"output: the simulation decided by a margin of {self.flipped_margin:.3g} what the deployed network "
                f"decides otherwise, and where decisions agree margins are off by at most {self.margin_error:.3g}"
            )


class SimulationCounts:
    """Runs both, and counts over batches."""

    def __init__(self, compressor: Compressor, small: DeployedNetwork) -> None:
        self.small, self.simulation = small, Simulation(compressor, small)
        self.decisions = Decisions()
        self._reads = layer_inputs(small)
        self._codes = self._differing = 0

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Run a batch through both."""
        nodes = {node for calls in self._reads.values() for node in calls}
        values, deployed = run_deployed(self.small, self.small.bind(args, kwargs), nodes)
        codes, simulated = self.simulation.run(args, kwargs)
        for layer, calls in codes.items():
            if len(calls) != len(self._reads[layer]):
                continue  # calls whose result nobody reads are not deployed, and nothing says which these are
            for mine, node in zip(calls, self._reads[layer], strict=True):
                theirs = values[node]
                if mine.shape == theirs.shape:  # what a layer pads by itself is in front of it when deployed
                    self._codes += mine.numel()
                    self._differing += int((mine != theirs).sum())
        self.decisions.add(simulated[0], deployed[0])

    def _check_codes(self) -> None:
        """Only roundings beside a tie may differ, and what follows from them: few codes, or nothing but float noise."""
        if self._differing > MOST_DIFFERING * self._codes:
            raise VerificationError(
                f"simulation: {self._differing:,} of {self._codes:,} activation codes are not those of the deployed "
                "network, more than roundings beside a tie explain: is this the compressor that was deployed?"
            )
        if self._differing == 0 and self.decisions.largest_error > TOLERANCE * self.decisions.largest_output:
            raise VerificationError(
                f"output: with equal codes the simulation's is off by {self.decisions.largest_error:.3g}, where "
                f"{self.decisions.largest_output:.3g} is the largest: is this the compressor that was deployed?"
            )

    def judged(self) -> Simulated:
        """What was counted; raises where the two are not the same network."""
        self._check_codes()
        self.decisions.check()
        return Simulated(
            inputs=self.decisions.inputs,
            codes=self._codes,
            differing_codes=self._differing,
            largest_error=self.decisions.largest_error,
            flipped=self.decisions.flipped,
            largest_flipped_margin=self.decisions.flipped_margin,
            margin_error=self.decisions.margin_error,
        )
