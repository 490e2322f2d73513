"""Forward passes over several batches that advance together, from module to module.

A method that changes layer after layer, each by what all batches show there, would have to run the network up to each
layer anew. Here the forward pass of every batch (see `waiting_passes`) stops behind each of the given modules. When all
passes have stopped behind a module, it may be changed. Then each pass computes that module again and goes on.
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from bayesbits.baselines.waiting_passes import WaitingPass, settings_of_this_thread
from bayesbits.nn.quantized_output import QuantizedOutput


class PassesError(Exception):
    """The passes do not stop behind the same modules, once each, or one of them has failed."""


def advance_together(
    model: nn.Module, batches: Sequence[Any], see: Mapping[str, Callable[[Tensor, bool], None]]
) -> Iterator[str]:
    """Yield the name of each module in `see` when the passes of all batches have stopped behind it.

    `see` maps names of modules to functions that get the module's output, not yet quantized and not changed by hooks,
    and whether it was computed again. Raises a `PassesError` where the passes do not all reach the same modules, or
    where one of them fails, as passes may disturb each other through state of the network.
    """
    settings = settings_of_this_thread(model)
    passes = [WaitingPass(model, batch, settings) for batch in batches]
    with _stopping(model, see):
        try:
            seen: set[str] = set()
            while True:
                places = {_advance(one) for one in passes}
                place = next(iter(places))
                if len(places) > 1 or place in seen:
                    raise PassesError(f"forward passes stopped behind {', '.join(map(str, places))}")
                if place is None:
                    return
                seen.add(place)
                yield place
        finally:
            for one in passes:
                one.stop()


def _advance(one: WaitingPass) -> str | None:
    """Run a pass up to the next stop, and return the name of the module there; None at the end."""
    try:
        one.go_on()
    except Exception as error:  # of this network, or because another pass has changed its state
        raise PassesError(f"a forward pass raised {type(error).__name__}") from error
    return None if one.place is None else one.place[0]


@contextmanager
def _stopping(model: nn.Module, see: Mapping[str, Callable[[Tensor, bool], None]]) -> Iterator[None]:
    """Inside the block the passes stop behind modules, and compute them again when they go on."""
    again: set[threading.Thread] = set()  # the passes that compute a module once more

    def hook_of(name: str) -> Callable[..., Any]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
            present = threading.current_thread()
            assert isinstance(present, WaitingPass)
            if not isinstance(module, QuantizedOutput):
                see[name](output, False)
            present.wait_at((name, "leave"), output)
            again.add(present)
            output = module.forward(*args, **kwargs)
            again.remove(present)
            if not isinstance(module, QuantizedOutput):
                see[name](output, True)
            return output

        return hook

    def unquantized_hook_of(name: str) -> Callable[..., None]:
        def hook(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            see[name](inputs[0], threading.current_thread() in again)

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
