"""The trained simulation beside the deployed network: differing codes, errors and flipped decisions, counted."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from bayesbits.compressor import Compressor
from bayesbits.deploy.network import DeployedNetwork
from bayesbits.deploy.verification.record import Simulated, VerificationError
from bayesbits.deploy.verification.reference import Simulation, layer_inputs, run_deployed


class SimulationCounts:
    """Counts over batches."""

    def __init__(self, compressor: Compressor, small: DeployedNetwork) -> None:
        self.small, self.simulation = small, Simulation(compressor, small)
        self._reads = layer_inputs(small)
        self._inputs = self._codes = self._differing = 0
        self._error = self._margin_error = 0.0
        self._flipped_margins: list[float] = []

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Run a batch through both."""
        nodes = {node for calls in self._reads.values() for node in calls}
        values, deployed = run_deployed(self.small, self.small.bind(args, kwargs), nodes)
        codes, simulated = self.simulation.run(args, kwargs)
        for layer, calls in codes.items():
            for mine, node in zip(calls, self._reads[layer], strict=True):
                theirs = values[node]
                if mine.shape == theirs.shape:  # what a layer pads by itself is in front of it when deployed
                    self._codes += mine.numel()
                    self._differing += int((mine != theirs).sum())
        for left, right in zip(simulated, deployed, strict=True):
            self._error = max(self._error, float((left - right).abs().max()))
        self._decide(simulated[0], deployed[0])

    def _decide(self, simulated: Tensor, deployed: Tensor) -> None:
        self._inputs += len(simulated)
        if simulated.dim() < 2 or simulated.shape[-1] < 2:
            return
        best = simulated.topk(2, dim=-1).values
        flipped = simulated.argmax(-1) != deployed.argmax(-1)
        self._flipped_margins += (best[..., 0] - best[..., 1])[flipped].tolist()
        errors = (deployed - simulated)[~flipped]
        if errors.numel():  # by how much the distance between two outputs is off where nothing flipped
            self._margin_error = max(self._margin_error, float((errors.amax(-1) - errors.amin(-1)).max()))

    def judged(self) -> Simulated:
        """What was counted; raises where a clear decision flipped."""
        margin = max(self._flipped_margins, default=0.0)
        if margin > self._margin_error:
            raise VerificationError(
                f"output: the simulation decided by a margin of {margin:.3g} what the deployed network decides "
                f"otherwise, and where decisions agree such distances are off by at most {self._margin_error:.3g}"
            )
        return Simulated(
            inputs=self._inputs,
            codes=self._codes,
            differing_codes=self._differing,
            largest_error=self._error,
            flipped=len(self._flipped_margins),
            largest_flipped_margin=margin,
            margin_error=self._margin_error,
        )
