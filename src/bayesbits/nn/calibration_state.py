"""Whether the ranges of a network's activations are known: one object, shared by everything that is attached to it."""

from dataclasses import dataclass


@dataclass
class CalibrationState:
    """Every attached layer and output holds the same object, so that each of them refuses to run without ranges."""

    known: bool = False
    """True once calibration, or a state_dict, has set the ranges."""

    def check(self) -> None:
        """Raise where nobody has set the ranges yet, before anything is computed with them."""
        if not self.known:
            raise RuntimeError(
                "the ranges of the activations are not known yet: call compressor.calibrate(batches), "
                "or load a state_dict that has them"
            )
