"""Attaching by exchanging classes: a live module gets a subclass of its own class, and its class back afterwards.

The module's parameters keep their names, `isinstance` holds, and `copy.deepcopy` and `pickle` work. The subclass is
made of a mixin and the module's class, once for each such pair; several mixins may lie over each other. A new object of
such a class, as slices of `nn.Sequential` make one, is an object of the float class: nothing is attached to it.
"""

from __future__ import annotations

from typing import Any, Self

from torch import nn


class AttachedModule(nn.Module):
    """The base of the mixins: `isinstance(module, AttachedModule)` says that something is attached to a module."""

    @classmethod
    def members(cls, original: type[nn.Module]) -> dict[str, Any]:
        """The attributes that the class made of this mixin and `original` has, beside those of the mixin."""
        return {}

    def release(self) -> None:
        """Remove the attributes that attaching has set on the module."""

    def __new__(cls, *arguments: Any, **keywords: Any) -> Self:
        made = next(base for base in cls.__mro__ if base in _made_of)  # cls itself, unless others have derived from it
        return float_class(made)(*arguments, **keywords)  # type: ignore[return-value]

    def __reduce_ex__(self, protocol: Any) -> Any:
        # The made class has no importable name: a pickle holds the float class and the mixins instead.
        return _rebuild, (float_class(type(self)), mixins_of(type(self))), self.__getstate__()  # type: ignore[no-untyped-call]


_classes: dict[tuple[type[AttachedModule], type[nn.Module]], type[nn.Module]] = {}
_made_of: dict[type[nn.Module], tuple[type[AttachedModule], type[nn.Module]]] = {}


def exchange_class(module: nn.Module, mixin: type[AttachedModule]) -> None:
    """Lay a mixin over a module's class."""
    module.__class__ = _mixed(mixin, type(module))


def check_restorable(module: nn.Module) -> None:
    """Raise where somebody else has exchanged the class of an attached module once more."""
    name = type(module).__name__
    if isinstance(module, AttachedModule) and type(module) not in _made_of:
        raise ValueError(
            f"the class {name} of a module was made after attaching, as fully_shard and parametrizations do: remove "
            "the parametrization, or load the weights into a new float network"
        )


def restore_class(module: nn.Module) -> None:
    """Give a module its float class back, and remove what the mixins have set on it."""
    for mixin in mixins_of(type(module)):
        mixin.release(module)  # type: ignore[arg-type]
    module.__class__ = float_class(type(module))


def float_class(attached: type[nn.Module]) -> type[nn.Module]:
    """The class that mixins were laid over; a class without any is its own."""
    while attached in _made_of:
        attached = _made_of[attached][1]
    return attached


def mixins_of(attached: type[nn.Module]) -> tuple[type[AttachedModule], ...]:
    """The mixins that lie over a class, the outermost first."""
    found: list[type[AttachedModule]] = []
    while attached in _made_of:
        mixin, attached = _made_of[attached]
        found.append(mixin)
    return tuple(found)


def _mixed(mixin: type[AttachedModule], original: type[nn.Module]) -> type[nn.Module]:
    if (mixin, original) not in _classes:
        # With the name of the module's own class: libraries look classes up by it.
        name = {"__module__": original.__module__, "__qualname__": original.__qualname__}
        made = type(original.__name__, (mixin, original), {**name, **mixin.members(original)})
        _classes[mixin, original], _made_of[made] = made, (mixin, original)
    return _classes[mixin, original]


def _rebuild(original: type[nn.Module], mixins: tuple[type[AttachedModule], ...]) -> nn.Module:
    for mixin in reversed(mixins):
        original = _mixed(mixin, original)
    module: nn.Module = object.__new__(original)
    return module
