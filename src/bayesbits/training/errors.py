"""What can stop a training: every message says where it stood, what is safe, and the way on."""


class TrainingError(RuntimeError):
    """Training was stopped; the last good checkpoint is intact."""


class CheckpointError(TrainingError):
    """A checkpoint cannot be read, does not belong to this training, or could not be written."""


class LoaderError(TrainingError):
    """The loader raised, or gave what is not a batch."""


class NonFiniteError(TrainingError):
    """The loss or a parameter became infinite or NaN."""


class Interrupted(TrainingError):  # noqa: N818 (being asked to stop is not an error)
    """A signal asked training to stop; it did after a whole step, and saved first if it has a folder."""

    def __init__(self, saved: str, signal: int, way_on: str = "") -> None:
        super().__init__(f"{saved}{way_on}")
        self.saved = saved
        """What happened and what is safe, without the way on."""
        self.signal = signal
        """The number of the signal; by the shell's convention a program ends with 128 more."""
