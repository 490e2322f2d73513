"""Work that is done again and again on tensors of the same shapes: on a GPU it is recorded once, and replayed.

To launch a kernel from Python takes longer than a small kernel runs. A CUDA graph launches all kernels of a step at
once, on the memory that they were recorded with.
"""

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bayesbits.utils.torch_private import tree_flatten, tree_map

_log = logging.getLogger("bayesbits")

WARM_UP = 3  # runs before one is recorded: the allocator and the optimizers' states settle


class Recorder:
    """Runs a function: the first times it is launched, the next it is recorded, and from then on it is replayed.

    Recording is an attempt: where it fails, as something in the function waits for the device, `refused` and the log
    say why, and the function is launched every time. What a replay returns lies where the next one writes. A recorder
    does not hold the function, whose owner holds the recorder: memory of the device shall not wait for Python's
    collector.
    """

    def __init__(self, device: torch.device, beside: "Recorder | None" = None) -> None:
        """`beside` is another recorder whose functions change the same parameters: they share a stream."""
        self.refused: str | None = None
        """Why nothing can be recorded, once that was tried."""
        self._device = device
        self._stream: Any = torch.cuda.Stream(device) if beside is None else beside._stream  # type: ignore[no-untyped-call]
        self.forget()

    def forget(self) -> None:
        """Give the record up; warm up and record again when there is more to run."""
        self._runs = 0
        self._graph: Any = None
        self._places: list[Tensor] = []
        self._result: Any = None

    @property
    def has_recorded(self) -> bool:
        """Whether runs are replayed."""
        return self._graph is not None

    def launch(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function on the stream of the record.

        Gradients are added up on the stream on which their parameter was first used, and a record cannot wait for
        another stream than its own: so whatever changes the same parameters is to be launched here.
        """
        outside = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(outside)
        with torch.cuda.stream(self._stream):
            result = function(*arguments)
        outside.wait_stream(self._stream)
        return result

    def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """What the function returns for arguments of the same shapes as every time; it is the same function, too."""
        self._runs += 1
        if self._runs > WARM_UP and not self.refused and self._graph is None:
            self._try_to_record(function, arguments)
        if self._graph is None:
            return self.launch(function, *arguments)
        for place, leaf in zip(self._places, _tensors(arguments), strict=True):
            place.copy_(leaf)
        self._graph.replay()
        return self._result

    def _try_to_record(self, function: Callable[..., Any], arguments: Any) -> None:
        static = tree_map(lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf, arguments)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, stream=self._stream):
                result = function(*static)
        except RuntimeError as error:
            self.refused = f"it failed: {first_line(error)}"
            _log.warning("the step cannot be recorded as a CUDA graph and runs unrecorded: %s", first_line(error))
            return
        self._graph, self._places, self._result = graph, _tensors(static), result


def _tensors(arguments: Any) -> list[Tensor]:
    return [leaf for leaf in tree_flatten(arguments)[0] if isinstance(leaf, Tensor)]


def first_line(error: Exception) -> str:
    """An error in a line of a log."""
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"
