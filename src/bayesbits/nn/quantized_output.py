"""A module whose output is quantized: the operand of a residual addition, or of a pooling with indices.

The output is quantized inside the module, before any forward hook: a hook sees what the deployed network has.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from bayesbits.nn.calibration_state import CalibrationState
from bayesbits.nn.class_exchange import AttachedModule, exchange_class
from bayesbits.nn.quantizer import Quantizer


@dataclass
class Output:
    """What is attached to a module whose output is quantized."""

    quantizer: Quantizer
    """Quantizes the output."""
    name: str
    """The module's name in the network."""
    calibration: CalibrationState
    """Shared by all that is attached to the network."""
    forward: Callable[..., Any] | None = None
    """The `forward` that was set on the module itself and not on its class."""


class QuantizedOutput(AttachedModule):
    """Mixed into the class of a module of any kind; lies over what else is attached to it."""

    bayesbits_output: Output

    @classmethod
    def members(cls, original: type[nn.Module]) -> dict[str, Any]:
        @functools.wraps(original.forward)
        def forward(self: Any, *arguments: Any, **keywords: Any) -> Tensor:
            attached: Output = self.bayesbits_output
            attached.calibration.check()
            if attached.forward is None:
                output = original.forward(self, *arguments, **keywords)
            else:
                output = attached.forward(*arguments, **keywords)
            if not isinstance(output, Tensor):
                raise TypeError(f"{attached.name} returned {type(output).__name__} where a tensor was traced")
            result: Tensor = attached.quantizer(output)
            return result

        return {"forward": forward}

    def release(self) -> None:
        if self.bayesbits_output.forward is not None:
            self.forward = self.bayesbits_output.forward
        del self.bayesbits_output


def attach_output(module: nn.Module, output: Output) -> None:
    """Quantize what a module returns, in place."""
    output.forward = module.__dict__.pop("forward", None)
    module.bayesbits_output = output  # type: ignore[assignment]
    exchange_class(module, QuantizedOutput)


def observe_output(module: nn.Module, see: Callable[[tuple[Any, ...], dict[str, Any], Any], None]) -> list[Any]:
    """Call `see` with the arguments and the result of every call of a module; returns the hooks' handles.

    The result is what the module itself computes: not yet quantized, and not yet changed by hooks.
    """
    if not isinstance(module, QuantizedOutput):
        return [
            module.register_forward_hook(
                lambda _, arguments, keywords, output: see(arguments, keywords, output), prepend=True, with_kwargs=True
            )
        ]
    given: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
    return [
        module.register_forward_pre_hook(
            lambda _, arguments, keywords: given.append((arguments, keywords)), with_kwargs=True
        ),
        module.bayesbits_output.quantizer.register_forward_pre_hook(lambda _, x: see(*given.pop(), x[0])),
    ]
