"""Forward passes over several batches that advance together, from module to module.

A method that changes layer after layer, each by what all batches show there, would have to run the network up to each
layer anew. Here every batch has a forward pass of its own, in a thread of its own, that stops behind each of the given
modules; only one thread runs at a time. When all passes have stopped behind a module, it may be changed. Then each pass
computes that module again and goes on.
"""

import contextvars
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from bayesbits.nn.quantized_output import QuantizedOutput
from bayesbits.utils.batches import call_without_labels


class PassesError(Exception):
    """The passes do not stop behind the same modules, once each, or one of them has failed."""


class _Abandoned(BaseException):
    """Ends a pass. It is not an Exception, which the network's own code may catch."""


class _Pass(threading.Thread):
    """The forward pass of one batch."""

    def __init__(self, model: nn.Module, batch: Any) -> None:
        super().__init__(daemon=True)
        self._model, self._batch, self._context = model, batch, contextvars.copy_context()
        self._go, self._stopped = threading.Semaphore(0), threading.Semaphore(0)
        self._place: str | None = None
        self._error: BaseException | None = None
        self._abandoned = False
        self.computes_again = False

    def run(self) -> None:
        self._go.acquire()
        try:
            if not self._abandoned:
                with torch.no_grad():
                    self._context.run(call_without_labels, self._model, self._batch)
        except _Abandoned:
            pass
        except BaseException as error:
            self._error = error
        self._place = None
        self._stopped.release()

    def advance(self) -> str | None:
        """Run up to the next stop, and return the name of the module there; None at the end."""
        self._go.release()
        self._stopped.acquire()
        if isinstance(self._error, Exception):  # of this network, or because another pass has changed its state
            raise PassesError(f"a forward pass raised {type(self._error).__name__}") from self._error
        if self._error is not None:
            raise self._error
        return self._place

    def stop(self, place: str) -> None:
        """Wait behind a module; called by the pass itself."""
        self._place = place
        self._stopped.release()
        self._go.acquire()
        if self._abandoned:
            raise _Abandoned

    def abandon(self) -> None:
        """End the pass, wherever it is."""
        self._abandoned = True
        self._go.release()
        self.join()


def advance_together(
    model: nn.Module, batches: Sequence[Any], see: Mapping[str, Callable[[Tensor, bool], None]]
) -> Iterator[str]:
    """Yield the name of each module in `see` when the passes of all batches have stopped behind it.

    `see` maps names of modules to functions that get the module's output, not yet quantized and not changed by hooks,
    and whether it was computed again. Raises a `PassesError` where the passes do not all reach the same modules, or
    where one of them fails, as passes may disturb each other through state of the network.
    """
    passes = [_Pass(model, batch) for batch in batches]
    with _stopping(model, see):
        try:
            for one in passes:
                one.start()
            seen: set[str] = set()
            while True:
                places = {one.advance() for one in passes}
                place = next(iter(places))
                if len(places) > 1 or place in seen:
                    raise PassesError(f"forward passes stopped behind {', '.join(map(str, places))}")
                if place is None:
                    return
                seen.add(place)
                yield place
        finally:
            for one in passes:
                one.abandon()


@contextmanager
def _stopping(model: nn.Module, see: Mapping[str, Callable[[Tensor, bool], None]]) -> Iterator[None]:
    """Inside the block the passes stop behind modules, and compute them again when they go on."""

    def hook_of(name: str) -> Callable[..., Any]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
            present = threading.current_thread()
            assert isinstance(present, _Pass)
            if not isinstance(module, QuantizedOutput):
                see[name](output, False)
            present.stop(name)
            present.computes_again = True
            output = module.forward(*args, **kwargs)
            present.computes_again = False
            if not isinstance(module, QuantizedOutput):
                see[name](output, True)
            return output

        return hook

    def unquantized_hook_of(name: str) -> Callable[..., None]:
        def hook(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            present = threading.current_thread()
            assert isinstance(present, _Pass)
            see[name](inputs[0], present.computes_again)

        return hook

    handles: list[Any] = []
    try:
        for name in see:
            module = model.get_submodule(name)
            handles.append(module.register_forward_hook(hook_of(name), prepend=True, with_kwargs=True))
            if isinstance(module, QuantizedOutput):
                quantizer = module.bayesbits_output.quantizer
                handles.append(quantizer.register_forward_pre_hook(unquantized_hook_of(name)))
        yield
    finally:
        for handle in handles:
            handle.remove()
