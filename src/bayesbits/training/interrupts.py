"""Ctrl-C and SIGTERM as a wish that the engine reads between steps.

The first signal is noted; a second one does what it did before training, which stops at once.
"""

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """Inside of the block signals are noted in `asked`; outside of the main thread there are none to note."""

    def __init__(self) -> None:
        self.asked: int = 0
        """The number of the signal that came; 0 as long as none did."""
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._note) for number in _SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._give_back()

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.asked = number
        self._give_back()

    def _give_back(self) -> None:
        for number, handler in self._before.items():
            # A handler that was not set from Python reads as None and cannot be set again.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._before = {}
