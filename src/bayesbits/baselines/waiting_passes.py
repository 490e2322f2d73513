"""Forward passes that wait at chosen modules: all batches go through the network together, one module after the other.

A method that works layer by layer needs the inputs of a layer once the layers before it are done. To run the network
from its start again for every layer would take as long as half the number of layers times one pass. Here the forward
pass of every batch runs in a thread of its own, and waits wherever it calls a module of interest until it is told to go
on. Only one of the threads runs at a time. What is held is what a pass holds at that point: the tensors that the rest
of the network still reads.
"""

import contextvars
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn

from bayesbits.nn.weight_product import find_layer
from bayesbits.utils.batches import call_without_labels


class _Stop(BaseException):
    """Ends a forward pass. It is not an Exception, which the network's own code may catch."""


class WaitingPass(threading.Thread):
    """The forward pass of one batch, a thread that waits wherever `wait_at` is called in it."""

    def __init__(self, model: nn.Module, batch: Any, settings: Callable[[], ExitStack]) -> None:
        super().__init__(daemon=True)
        self.place: tuple[str, str] | None = ("", "enter")
        """The module where it waits, with "enter" or "leave"; None once it has ended."""
        self.value: Any = None
        """The arguments and keywords of the module when entering, its output when leaving."""
        self._model, self._batch, self._settings = model, batch, settings
        self._context = contextvars.copy_context()
        self._error: BaseException | None = None
        self._stopped = False
        self._go, self._arrived = threading.Semaphore(0), threading.Semaphore(0)
        self.start()

    def run(self) -> None:
        """The pass, in its own thread."""
        self._go.acquire()
        try:
            if not self._stopped:
                with self._settings(), torch.no_grad():
                    self._context.run(call_without_labels, self._model, self._batch)
        except _Stop:
            pass
        except BaseException as error:  # raised again where the pass is told to go on
            self._error = error
        self.place = self.value = self._batch = None
        self._arrived.release()

    def wait_at(self, place: tuple[str, str], value: Any) -> None:
        """Wait here until told to go on; called in the thread of the pass."""
        self.place, self.value = place, value
        self._arrived.release()
        self._go.acquire()
        if self._stopped:
            raise _Stop
        self.value = None

    def go_on(self) -> None:
        """Run to the next place; raises what the network raises."""
        self._go.release()
        self._arrived.acquire()
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """End the pass where it is."""
        if self.place is not None:
            self._stopped = True
            self._go.release()
        self.join()


class WaitingPasses:
    """The forward passes of all batches through one network, stopped at modules in the order in which these run."""

    def __init__(self, passes: Sequence[WaitingPass], names: Sequence[str]) -> None:
        self._passes, self._order = passes, {"": -1} | {name: number for number, name in enumerate(names)}

    def to(self, name: str, *, leave: bool = False) -> list[Any]:
        """Run every pass until it enters a module, or leaves it; returns the values there, None where it never does."""
        place = (self._order[name], leave)
        values = []
        for one in self._passes:
            while one.place is not None and (self._order[one.place[0]], one.place[1] == "leave") < place:
                one.go_on()
            values.append(one.value if one.place == (name, "leave" if leave else "enter") else None)
        return values


@contextmanager
def waiting_passes(model: nn.Module, batches: Sequence[Any], names: Sequence[str]) -> Iterator[WaitingPasses]:
    """Passes of all batches that wait at the modules of these names, which are given in running order."""
    settings = settings_of_this_thread(model)
    handles: list[Any] = []
    passes: list[WaitingPass] = []
    try:
        for name in names:
            handles += _wait_at(find_layer(model, name), name)
        passes += [WaitingPass(model, batch, settings) for batch in batches]
        yield WaitingPasses(passes, names)
    finally:
        for one in passes:
            one.stop()
        for handle in handles:
            handle.remove()


def _wait_at(module: nn.Module, name: str) -> list[Any]:
    """Hooks by which a pass waits at a module; calls outside of passes are not concerned."""

    def enter(_module: nn.Module, arguments: Any, keywords: Any) -> None:
        present = threading.current_thread()
        if isinstance(present, WaitingPass):
            present.wait_at((name, "enter"), (arguments, keywords))

    def leave(_module: nn.Module, _arguments: Any, output: Any) -> None:
        present = threading.current_thread()
        if isinstance(present, WaitingPass):
            present.wait_at((name, "leave"), output)

    return [
        module.register_forward_pre_hook(enter, with_kwargs=True),
        module.register_forward_hook(leave, prepend=True),  # before hooks of the user's change the output
    ]


def settings_of_this_thread(model: nn.Module) -> Callable[[], ExitStack]:
    """The settings of torch that are a thread's own, to be entered in another thread: autocast and the CUDA device."""
    device = next((tensor.device for tensor in model.parameters()), torch.device("cpu"))
    autocast = (torch.is_autocast_enabled(device.type), torch.get_autocast_dtype(device.type))

    def enter() -> ExitStack:
        stack = ExitStack()
        if device.type == "cuda":
            stack.enter_context(torch.cuda.device(device))
        stack.enter_context(torch.autocast(device.type, enabled=autocast[0], dtype=autocast[1]))
        return stack

    return enter
