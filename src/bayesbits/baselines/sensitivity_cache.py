"""Running a network again with cached outputs of the modules that a change cannot affect.

The calls of all modules are recorded in the order in which they begin. When a quantizer changes, every call that ended
before the first call of the quantizer has the same inputs as before, and its recorded output is returned: for nested
modules that of the outermost such call, so that nothing inside it runs. Operations between modules are computed
again. The results are bitwise equal to those of a run from the start.

The network must be in evaluation mode and deterministic. A recorded output that was written into afterwards is not
used, and a call that writes into its inputs, such as an in-place ReLU, is repeated. The cache holds the outputs of all
modules for one batch, about as much memory as a training step.
"""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from bayesbits.nn import Quantizer
from bayesbits.nn.weight_product import ProductOwner
from bayesbits.utils.batches import call_without_labels
from bayesbits.utils.torch_private import tensor_version, tree_leaves


@dataclass
class _Call:
    """One call of a module."""

    module: nn.Module
    end: int
    """The number of the first call after it that it does not contain."""
    output: Any = None
    """The recorded output."""
    versions: tuple[int, ...] | None = None
    """The versions of the output's tensors when the call ended; a tensor that was written into since then has another
    one. None where the call must always be repeated, because it wrote into its inputs or was not recorded."""

    def usable(self) -> bool:
        """Whether the recorded output is still the one that the call returned."""
        return self.versions == _versions(self.output)


class CachedForward:
    """Runs of one network on one batch, each reusing outputs of the run that was recorded last."""

    def __init__(self, model: nn.Module, batch: Any) -> None:
        self.model, self.batch = model, batch
        self.computed = 0
        """The number of module calls that the latest run computed."""
        self._calls: list[_Call] = []

    def run(self, changed: Collection[nn.Module] | None = None, *, record: bool = True) -> Any:
        """The network's output.

        `changed` holds every module that behaves differently from the recorded run; with None everything is computed.
        With `record` this run replaces the recorded one.
        """
        before = self._calls
        first = 0
        if changed is not None:
            numbers = [number for number, call in enumerate(before) if call.module in changed]
            first = min(numbers, default=len(before))
        run = _Run(before, first, keep=record)
        with _intercepted(self.model, run):
            output = call_without_labels(self.model, self.batch)
        self.computed = run.computed
        if record:
            self._calls = run.calls
        return output


class _Run:
    """One run: calls that end before the call with the number `first` return recorded outputs, others are computed."""

    def __init__(self, before: list[_Call], first: int, *, keep: bool) -> None:
        self.before, self.first, self.keep = before, first, keep
        self.calls: list[_Call] = []
        self.computed = 0

    def call(self, module: nn.Module, forward: Callable[..., Any], arguments: Any, keywords: Any) -> Any:
        """The output of a module: the recorded one where it can be used, or else that of its `forward`."""
        number = len(self.calls)  # up to `first` the calls are the recorded ones
        if number < self.first:
            recorded = self.before[number]
            if recorded.module is module and recorded.end <= self.first and recorded.usable():
                self.calls.extend(self.before[number : recorded.end])
                return recorded.output
        call = _Call(module, number)
        self.calls.append(call)
        self.computed += 1
        given = _versions((arguments, keywords))
        output = forward(*arguments, **keywords)
        call.end = len(self.calls)
        if self.keep and given == _versions((arguments, keywords)):
            call.output, call.versions = output, _versions(output)
        return output


@contextmanager
def _intercepted(model: nn.Module, run: _Run) -> Iterator[None]:
    """Inside the block every module of the network calls the run instead of its own `forward`."""
    # A module that counts the products of its code and of its children must not miss any of them.
    owners = [module for module in model.modules() if isinstance(module, ProductOwner)]
    counted = {inner for owner in owners for inner in owner.modules() if inner is not owner}
    modules = [
        module
        for module in model.modules()
        if module is not model
        and "forward" not in module.__dict__
        and (module not in counted or isinstance(module, Quantizer))
    ]

    def intercept(module: nn.Module) -> Callable[..., Any]:
        forward = module.forward
        return lambda *arguments, **keywords: run.call(module, forward, arguments, keywords)

    try:
        for module in modules:
            module.forward = intercept(module)
        yield
    finally:
        for module in modules:
            module.__dict__.pop("forward", None)


def _versions(output: Any) -> tuple[int, ...]:
    return tuple(tensor_version(leaf) for leaf in tree_leaves(output) if isinstance(leaf, Tensor))
