"""The reasons for which training stops: exceptions, and the signals of Ctrl-C and SIGTERM.

Every message says where training stood, what is saved, and how to resume.
"""

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class TrainingError(RuntimeError):
    """Training stopped; the last checkpoint is intact.

    The base class of everything that `search` and `finetune` raise while they train: a damaged checkpoint, a loader
    that raised, a loss that is NaN, or an interruption.

    Example::

        >>> import bayesbits as bb
        >>> issubclass(bb.Interrupted, bb.TrainingError)
        True
    """


class CheckpointError(TrainingError):
    """A checkpoint cannot be read, was written by another training, or could not be written."""


class LoaderError(TrainingError):
    """The loader raised, or gave something that is not a batch."""


class NonFiniteError(TrainingError):
    """The loss or a parameter became infinite or NaN."""


class Interrupted(TrainingError):  # noqa: N818 (being asked to stop is not an error)
    """A signal asked training to stop: the step was finished, and a checkpoint was written if there is a folder.

    Args:
        saved: What happened and what is saved, without how to resume.
        signal: The number of the signal; by the shell's convention a program exits with 128 more.
        how_to_resume: The end of the message.

    Example::

        >>> import bayesbits as bb
        >>> error = bb.Interrupted("search was interrupted", signal=15, how_to_resume=": pass resume=True")
        >>> print(error)
        search was interrupted: pass resume=True
        >>> 128 + error.signal
        143
    """

    def __init__(self, saved: str, signal: int, how_to_resume: str = "") -> None:
        super().__init__(f"{saved}{how_to_resume}")
        self.saved = saved
        """What happened and what is saved, without how to resume."""
        self.signal = signal
        """The number of the signal; by the shell's convention a program exits with 128 more."""


class StopSignals:
    """Inside this context the first SIGINT or SIGTERM is noted in `received`, and the engine reads it between steps.

    A second signal does what it did before training, which stops at once. Outside of the main thread Python delivers
    no signals, and none is noted.
    """

    def __init__(self) -> None:
        self.received: int = 0
        """The number of the signal; 0 as long as there was none."""
        self._handlers: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._handlers = {number: signal.signal(number, self._note) for number in _SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._restore_handlers()

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.received = number
        self._restore_handlers()

    def _restore_handlers(self) -> None:
        for number, handler in self._handlers.items():
            # A handler that was not set from Python reads as None and cannot be set again.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._handlers = {}
