"""The call of a network: its arguments, the names of its input and output tensors, and the checks of a call.

The arguments are read from the network's `forward` and the example inputs. Everything in them that is not a tensor is a
constant of the deployed network.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn

from bayesbits.records.integer_network import Argument, Structure
from bayesbits.utils.pytree import Tree, describe, tensors_in
from bayesbits.utils.torch_private import tree_leaves

POSITION, NAME, EITHER = "position", "name", "either"


def sort_keyword_inputs(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Keyword inputs in the order of the network's forward; torch.export keeps the order in which they are given."""
    names = list(inspect.signature(model.forward).parameters)
    _bind(model, args, kwargs)
    return {name: kwargs[name] for name in names if name in kwargs} | kwargs


def read_arguments(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Argument, ...]:
    """The arguments of a call; tensors are numbered in the order in which torch flattens the call."""
    numbers = {id(leaf): number for number, leaf in enumerate(_tensor_leaves(args, kwargs))}

    def form(value: Any) -> Tree:
        tensors: list[Tensor] = []
        return _renumber(describe(value, tensors), [numbers[id(tensor)] for tensor in tensors])

    bound = _bind(model, args, kwargs)
    given = set(bound.arguments)
    bound.apply_defaults()
    found = []
    for parameter in bound.signature.parameters.values():
        value = bound.arguments[parameter.name]
        if parameter.kind is parameter.VAR_POSITIONAL:
            found += [Argument(f"{parameter.name}.{i}", form(item), POSITION, False) for i, item in enumerate(value)]
        elif parameter.kind is parameter.VAR_KEYWORD:
            found += [Argument(name, form(item), NAME, False) for name, item in value.items()]
        elif parameter.name in given or not tensors_in(value):
            how = POSITION if parameter.kind is parameter.POSITIONAL_ONLY else EITHER
            how = NAME if parameter.kind is parameter.KEYWORD_ONLY else how
            optional = parameter.name not in given or _is_default(value, parameter.default)
            found.append(Argument(parameter.name, form(value), how, optional))
    _check_repeatable(found)
    return tuple(found)


def _check_repeatable(arguments: Sequence[Argument]) -> None:
    """Raise for a required constant that no later call can give again, such as a lambda."""
    for argument in arguments:
        value = argument.form.unrepeatable()
        if value is not None and not argument.optional:
            raise ValueError(
                f"the network was attached with {value} as {argument.name}, which cannot be known again, and would be "
                "part of every call of the deployed network. To fix this: make it the default of that argument, or an "
                "attribute of the network, and leave it out of the example inputs"
            )


def name_tensors(arguments: Sequence[Argument], returns: Tree) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Unique names for all input tensors and all output tensors.

    An input is named by its argument, followed by the keys and positions that lead to the tensor inside. An output is
    named by its key, "output" where it is the only one, and "output0", "output1" in a tuple; a name that an input has
    already gets the prefix "output_".
    """
    paths: dict[int, str] = {}
    for argument in arguments:
        for path, leaf in argument.form.leaves((argument.name,)):
            if leaf.kind == "tensor":
                paths[leaf.index] = ".".join(path)
    inputs: dict[str, None] = {}
    for number in sorted(paths):
        inputs[_unique(paths[number], inputs)] = None
    outputs: dict[str, None] = {}
    for path in returns.tensors():
        name = ".".join(path)
        name = f"output{name}" if not name or name[0].isdigit() else name
        outputs[_unique(f"output_{name}" if name in inputs else name, {**inputs, **outputs})] = None
    return tuple(inputs), tuple(outputs)


def _unique(name: str, taken: Collection[str]) -> str:
    """A name, or where it is taken, the name with the first free number behind it."""
    numbered = (f"{name}_{number}" for number in count(2))
    return name if name not in taken else next(other for other in numbered if other not in taken)


def bind(arguments: Sequence[Argument], args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    """The tensors of a call in the order of their numbers; raises, naming the argument, where the call does not fit."""
    return [tensor for _, tensor in sorted(_bound(arguments, args, kwargs), key=lambda pair: pair[0])]


def _bound(
    arguments: Sequence[Argument], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Iterator[tuple[int, Tensor]]:
    positional = [argument.name for argument in arguments if argument.given != NAME]
    given = dict(zip(positional, args, strict=False)) | kwargs
    known = {argument.name for argument in arguments if argument.given != POSITION} | set(positional[: len(args)])
    missing = {argument.name for argument in arguments if not argument.optional} - set(given)
    if len(args) > len(positional) or len(given) != len(args) + len(kwargs) or missing or set(given) - known:
        names = [argument.name for argument in arguments if not argument.optional or argument.name in given]
        found = [f"{len(args)} positional", *kwargs]
        raise TypeError(f"the network takes the inputs {', '.join(names)}, and was given: {', '.join(found)}")
    for argument in arguments:
        if argument.name in given:
            yield from argument.form.read(given[argument.name], argument.name)


def example_call(structure: Structure, *, by_position: bool) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Example inputs of zeros; arguments that can be given either way are given by position or by name."""
    zeros = [
        torch.zeros(shape, dtype=getattr(torch, dtype))
        for shape, dtype in zip(structure.input_shapes, structure.input_types, strict=True)
    ]
    takes = structure.takes
    positional = (POSITION, EITHER) if by_position else (POSITION,)
    required = (i for i, argument in enumerate(takes) if argument.given in positional and not argument.optional)
    last = max(required, default=-1)
    rest = [argument for argument in takes[last + 1 :] if not argument.optional]
    for argument in (*takes[: last + 1], *rest):
        if any(part.kind in ("object", "other") for part in argument.form.parts()):
            raise ValueError(
                f"the network takes an object as {argument.name}, whose class is not stored, so that no example of it "
                "can be made. To fix this: give example inputs, or load without a model"
            )
    args = tuple(argument.form.build(zeros) for argument in takes[: last + 1])
    return args, {argument.name: argument.form.build(zeros) for argument in rest}


def to_stored_dtype(tensor: Tensor, name: str, stored: str) -> Tensor:
    """An input in the dtype of the example inputs; raises where that changes integers, floats or complex numbers."""
    wanted: torch.dtype = getattr(torch, stored)
    floats = wanted.is_floating_point, tensor.is_floating_point()
    if floats[0] != floats[1] or wanted.is_complex != tensor.is_complex():
        raise TypeError(
            f"the network takes {name} as {stored}, and was given {str(tensor.dtype).removeprefix('torch.')}"
        )
    return tensor.to(wanted)


def _tensor_leaves(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    return [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]


def _bind(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> inspect.BoundArguments:
    try:
        return inspect.signature(model.forward).bind(*args, **kwargs)
    except TypeError as error:
        raise ValueError(f"{type(model).__name__} does not take these inputs: {error}") from None


def _renumber(form: Tree, numbers: list[int]) -> Tree:
    if form.kind == "tensor":
        return Tree("tensor", index=numbers[form.index])
    return replace(form, items=tuple(_renumber(item, numbers) for item in form.items))


def _is_default(value: Any, default: Any) -> bool:
    return default is not inspect.Parameter.empty and not tensors_in(value) and repr(value) == repr(default)
