"""The root of a network with quantizers attached: it draws the gates before each forward pass, and owns what learns.

Everything that is attached belongs to one module, `nn.network_quantizers`, under the name `bayesbits`. Operations on
the whole network include it: `modules`, `parameters`, `buffers`, `state_dict`, `load_state_dict`, `train`, `to` and all
that rests on them. It is not among the `children`: code that walks over those, in a forward pass or to take a network
apart, finds the float network's. Tools that save states walk over `named_children`, which have it outside of a forward
pass. And it is in no part of the network, so that freezing a part, or setting it to evaluation, leaves the gates and
ranges alone. A state_dict without any of its keys is one of the float network, and leaves it as it is.
"""

import functools
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from bayesbits.nn.class_exchange import AttachedModule, exchange_class
from bayesbits.nn.network_quantizers import NetworkQuantizers
from bayesbits.utils.torch_private import remove_forward_pre_hooks

NAME = "bayesbits"


class AttachedNetwork(AttachedModule):
    """Mixed into the class of the whole network; a forward pre-hook would stay outside of what is compiled."""

    bayesbits: NetworkQuantizers

    @classmethod
    def members(cls, original: type[nn.Module]) -> dict[str, Any]:
        @functools.wraps(original.forward)
        def forward(self: Any, *arguments: Any, **keywords: Any) -> Any:
            attached: NetworkQuantizers = self.bayesbits
            attached.before_forward()
            if torch.compiler.is_dynamo_compiling():  # one graph, without blocks that have an end of their own
                output = original.forward(self, *arguments, **keywords)
                attached.after_forward()
                return output
            try:
                return original.forward(self, *arguments, **keywords)
            finally:
                attached.after_forward()

        return {"forward": forward}

    def named_modules(
        self, memo: set[nn.Module] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Module]]:
        memo = set() if memo is None else memo
        yield from super().named_modules(memo, prefix, remove_duplicate)
        yield from self._attached.named_modules(memo, f"{prefix}.{NAME}" if prefix else NAME, remove_duplicate)

    def named_children(self) -> Iterator[tuple[str, nn.Module]]:
        yield from super().named_children()
        if not self.bayesbits.in_pass:
            yield NAME, self._attached

    def children(self) -> Iterator[nn.Module]:
        for _, child in super().named_children():
            yield child

    def __setattr__(self, name: str, value: Any) -> None:
        # Code that goes over `named_children` and puts each one back, or a converted one, finds it where it was.
        if name != NAME:
            super().__setattr__(name, value)
        elif value is not self.__dict__.get(NAME):
            raise AttributeError(f"{NAME!r} is what bayesbits has attached; compressor.detach() takes it away")

    def add_module(self, name: str, module: nn.Module | None) -> None:
        if name == NAME:
            setattr(self, name, module)
        else:
            super().add_module(name, module)

    def train(self, mode: bool = True) -> Any:
        self._attached.train(mode)
        return super().train(mode)

    @property
    def _attached(self) -> NetworkQuantizers:
        attached: NetworkQuantizers = self.__dict__[NAME]
        return attached

    def release(self) -> None:
        for module in self.modules():
            remove_forward_pre_hooks(module, _PlainPath)
        del self.__dict__[NAME]

    def _apply(self, function: Any, recurse: bool = True) -> Any:
        if recurse:
            self._attached._apply(function)
        return super()._apply(function, recurse)  # type: ignore[no-untyped-call]

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        self._attached.state_dict(destination=destination, prefix=f"{prefix}{NAME}.", keep_vars=keep_vars)

    def _load_from_state_dict(
        self, state: Any, prefix: str, metadata: Any, strict: bool, missing: list[str], unexpected: list[str],
        errors: list[str],
    ) -> None:  # fmt: skip
        super()._load_from_state_dict(state, prefix, metadata, strict, missing, unexpected, errors)
        start = f"{prefix}{NAME}."
        own = {key[len(start) :]: value for key, value in state.items() if key.startswith(start)}
        if not own:
            return
        unexpected[:] = [key for key in unexpected if not key.startswith(start)]
        try:
            found = self._attached.load_state_dict(
                own, strict=False, assign=metadata.get("assign_to_params_buffers", False)
            )
        except RuntimeError as error:
            errors.append(str(error))
        else:
            missing += [start + key for key in found.missing_keys]
            unexpected += [start + key for key in found.unexpected_keys]


class _PlainPath:
    """A forward pre-hook that does nothing: where one is, torch's fused transformer layer calls its modules.

    The fused one reads their weights and runs without them, and so without what is attached.
    """

    def __call__(self, module: nn.Module, arguments: Any) -> None:
        return None


class PaddedEncoder(AttachedModule):
    """Mixed into the class of `nn.TransformerEncoder`, which would hand nested tensors to its layers in evaluation.

    Only the fused layer takes those. Without them padded positions are computed as in training, and not set to zero.
    """

    @property
    def use_nested_tensor(self) -> bool:
        return False


def attach_to_network(model: nn.Module, attached: NetworkQuantizers) -> None:
    """Make a network the owner of the quantizers and gates that are attached to its modules, in place."""
    attached.to(next(model.parameters()).device)
    attached.train(model.training)
    exchange_class(model, AttachedNetwork)
    model.__dict__[NAME] = attached  # beside the children
    for module in model.modules():
        if isinstance(module, nn.TransformerEncoderLayer):
            module.register_forward_pre_hook(_PlainPath())
        if isinstance(module, nn.TransformerEncoder):
            exchange_class(module, PaddedEncoder)
