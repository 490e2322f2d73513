"""The attached product: a convolution or matrix product that a module's own code computes.

The class of the module is exchanged (see `nn.class_exchange`) for one that runs the module's own forward and watches
the functions that it calls. Where the forward multiplies data with a weight that is attached to, whatever computed that
weight, the product is computed with input, weight and bias on their grids instead.

    forward:   x = pad(x);  w = standardize(weight);  conv2d(x, w, bias)
    attached:  x = pad(x);  w = standardize(weight);  conv2d(Q(x), Q(w), round(bias))
"""

from __future__ import annotations

import copy
import functools
import types
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from bayesbits.nn.activation_product import ActivationProduct, OperandQuantizers, run_attached
from bayesbits.nn.class_exchange import AttachedModule, exchange_class
from bayesbits.nn.layer import AttachedLayer, LayerParts
from bayesbits.utils.activation_products import FUNCTIONS as MATRIX_FUNCTIONS
from bayesbits.utils.activation_products import ActivationProductCall
from bayesbits.utils.tensor_expression import TensorExpression
from bayesbits.utils.torch_private import BatchNorm
from bayesbits.utils.weight_products import FUNCTIONS, SIGNATURES, Bound, ProductCall, bind, call


@dataclass
class ProductSource:
    """What is known of a product before its module runs."""

    call: ProductCall
    """Which of the module's calls it is."""
    kind: str
    """"conv", "conv_transpose" or "linear"."""
    weight: TensorExpression
    bias: TensorExpression | None
    geometry: Mapping[str, Any]
    """Stride, padding and the like, by the names of the function's arguments."""


class AttachedProduct(AttachedLayer):
    """A product with what is attached to it. It is called where the product is, but no module of the network."""

    def __init__(self, name: str, source: ProductSource, parts: LayerParts) -> None:
        super().__init__()
        self.name, self.source, self.parts = name, source, parts
        self.groups = int(source.geometry.get("groups", 1))
        self._constants: tuple[Tensor, Tensor | None] | None = None

    def forward(self, input: Tensor, function: Any, bound: Bound) -> Tensor:  # noqa: A002 (as layers call it)
        """The result of a call of the product's function, with `input` as its data."""
        _, weight, bias, rest, keywords = bound
        weight, bias = (self._turned(weight), bias) if self._constants is None else self._constants
        x, weight, bias = self.quantized(input, weight, bias)
        return call(function, x, self._turned(weight), bias, rest, keywords)

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        """The weight that is multiplied, as a layer stores it."""
        return self._turned(self.source.weight.evaluate()) if self._constants is None else self._constants[0]

    @property
    def bias(self) -> Tensor | None:  # type: ignore[override]
        """The bias that is added; None where there is none."""
        if self._constants is not None:
            return self._constants[1]
        return None if self.source.bias is None else self.source.bias.evaluate()

    @property
    def _weight_shape(self) -> tuple[int, ...]:
        shape = self.source.call.weight_shape
        return shape[::-1] if self._inputs_first else shape

    @property
    def _is_transposed(self) -> bool:
        return self.source.kind == "conv_transpose"

    @property
    def stored_weight(self) -> nn.Parameter | None:
        parameter = None if self.source.weight.steps else self.source.weight.evaluate()
        return parameter if isinstance(parameter, nn.Parameter) else None

    def compute(self, x: Tensor, weight: Tensor, bias: Tensor | None, output_size: list[int] | None = None) -> Tensor:
        if self.source.kind == "linear":
            return F.linear(x, weight, bias)
        function: Callable[..., Tensor] = getattr(F, self.source.call.operation)
        return function(x, weight, bias, **self.source.geometry)

    def set_constants(self, weight: Tensor, bias: Tensor | None) -> None:
        self._constants = weight, bias

    @property
    def _inputs_first(self) -> bool:
        return SIGNATURES[self.source.call.operation].inputs_first

    def _turned(self, weight: Tensor) -> Tensor:
        """The weight of the function as a layer stores it, and the other way round."""
        return weight.t() if self._inputs_first else weight


@dataclass
class OwnedProducts:
    """What is attached to a module whose code computes products."""

    products: dict[ProductCall, AttachedProduct] = field(default_factory=dict)
    activation_products: dict[ActivationProductCall, tuple[ActivationProduct, ...]] = field(default_factory=dict)
    """The products of two activations; a call of attention has two of them."""
    forward: Callable[..., Any] | None = None
    """The `forward` that was set on the module itself and not on its class."""


class ProductOwner(AttachedModule):
    """Mixed into the class of a module of any kind whose own code computes products."""

    bayesbits_products: OwnedProducts

    @classmethod
    def members(cls, original: type[nn.Module]) -> dict[str, Any]:
        @functools.wraps(original.forward)
        def forward(self: Any, *arguments: Any, **keywords: Any) -> Any:
            owned: OwnedProducts = self.bayesbits_products
            with _Watch(owned.products, owned.activation_products):
                if owned.forward is None:
                    return original.forward(self, *arguments, **keywords)
                return owned.forward(*arguments, **keywords)

        return {"forward": forward}

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        # Parametrized modules copy themselves by making an object of their class, which attached classes do not allow.
        made: Self = object.__new__(type(self))
        memo[id(self)] = made
        made.__dict__ = copy.deepcopy(self.__dict__, memo)
        return made

    def release(self) -> None:
        if self.bayesbits_products.forward is not None:
            self.forward = self.bayesbits_products.forward
        del self.bayesbits_products


def _body(function: Any) -> Any:
    """A function of torch.nn.functional that does not ask whether it is overridden itself: what it calls may be."""
    scope = {**function.__globals__, "has_torch_function": lambda tensors: False}
    del scope["__name__"]  # the compiler would look names up in that module, and not here
    made = types.FunctionType(function.__code__, scope, function.__name__, function.__defaults__)
    made.__kwdefaults__ = function.__kwdefaults__
    return made


_ATTENTION = _body(F.multi_head_attention_forward)


class _Watch(TorchFunctionMode):
    """Inside it, the calls of functions that are attached products are computed by those."""

    def __init__(
        self,
        products: Mapping[ProductCall, AttachedProduct],
        activation_products: Mapping[ActivationProductCall, tuple[ActivationProduct, ...]],
    ) -> None:
        super().__init__()
        self.products, self.activation_products = products, activation_products
        self.seen: dict[tuple[str, tuple[int, ...]], int] = {}
        self.multiplied: dict[str, int] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = {} if kwargs is None else kwargs
        if func is F.multi_head_attention_forward:
            with self:
                return _ATTENTION(*args, **kwargs)
        if func is Tensor.unflatten:  # a method that the compiler cannot trace from here
            func = torch.unflatten
        multiplied = self._activation_products(func) if self.activation_products else ()
        if func not in FUNCTIONS:
            return run_attached(multiplied, func, args, kwargs) if multiplied else func(*args, **kwargs)
        bound = bind(func, args, kwargs)
        data, weight = bound[:2]
        if not isinstance(weight, Tensor):
            return func(*args, **kwargs)
        operation, shape = FUNCTIONS[func], tuple(weight.shape)
        number = self.seen.get((operation, shape), 0)
        self.seen[operation, shape] = number + 1
        product = self.products.get(ProductCall(operation, shape, number))
        if multiplied:
            return run_attached(multiplied, func, args, kwargs)
        return func(*args, **kwargs) if product is None else product(data, func, bound)

    def _activation_products(self, func: Any) -> tuple[ActivationProduct, ...]:
        """The products of two activations that a call is; none where it is none of them."""
        operation = MATRIX_FUNCTIONS.get(func)
        if operation is None:
            return ()
        number = self.multiplied.get(operation, 0)
        self.multiplied[operation] = number + 1
        return self.activation_products.get(ActivationProductCall(operation, number), ())


def attach_product(owner: nn.Module, name: str, source: ProductSource, parts: LayerParts) -> AttachedProduct:
    """Attach parts to a product that a module's code computes, in place; returns the product."""
    product = AttachedProduct(name, source, parts)
    _owned(owner).products[source.call] = product
    return product


def attach_activation_product(
    owner: nn.Module, name: str, call: ActivationProductCall, parts: OperandQuantizers
) -> None:
    """Attach quantizers to a product of two activations, in place; the first product of a call comes first."""
    owned = _owned(owner)
    owned.activation_products[call] = (*owned.activation_products.get(call, ()), ActivationProduct(name, parts))


def _owned(owner: nn.Module) -> OwnedProducts:
    """The products of a module, which becomes their owner where it was none."""
    if not isinstance(owner, ProductOwner):
        forward = owner.__dict__.pop("forward", None)
        owner.bayesbits_products = OwnedProducts(forward=forward)  # type: ignore[assignment]
        exchange_class(owner, ProductOwner)
    assert isinstance(owner, ProductOwner)
    return owner.bayesbits_products


def attached_products(model: nn.Module) -> dict[str, AttachedProduct]:
    """All attached products of a network, by the names of their layers."""
    owners = (module for module in model.modules() if isinstance(module, ProductOwner))
    return {product.name: product for owner in owners for product in owner.bayesbits_products.products.values()}


def attached_activation_products(model: nn.Module) -> dict[str, ActivationProduct]:
    """All attached products of two activations, by their names."""
    owners = (module for module in model.modules() if isinstance(module, ProductOwner))
    calls = (products for owner in owners for products in owner.bayesbits_products.activation_products.values())
    return {product.name: product for products in calls for product in products}


def find_layer(model: nn.Module, name: str) -> nn.Module:
    """The layer of this name: an attached product, or the module, which is an `AttachedLayer` unless it is in float."""
    with suppress(AttributeError):  # a product need not have the name of a module
        module = model.get_submodule(name)
        if isinstance(module, AttachedLayer | BatchNorm):
            return module
    return attached_products(model).get(name) or model.get_submodule(name)
