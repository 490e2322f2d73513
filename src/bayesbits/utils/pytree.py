"""What a network takes or returns, as plain data: containers, constants, and the places of tensors in them.

A `Tree` describes a value of nested tuples, lists, dicts and objects. Tensors in it are numbered in the order in which
they lie there. Named tuples, dataclasses and dicts that are dataclasses have the name of their class, by which they are
built again. Other objects are what their attributes with tensors in them are: a network that returned such a one is
described as if it had returned a dict of them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from bayesbits.utils.container_classes import build_container, field_names, find_class, name_class

PLAIN = (bool, int, float, str, type(None))
ADDRESS = re.compile(r"\bat 0x[0-9a-fA-F]+")


@dataclass(frozen=True)
class Tree:
    """A value, or a part of one."""

    kind: str
    """"tensor", "constant", "other" (a constant that is no plain value), "tuple", "list", "dict" or "object"."""
    index: int = -1
    """Of a tensor: its number."""
    content: str = ""
    """Of a constant: its JSON form; of another one what `repr` says of it."""
    keys: tuple[str, ...] = ()
    """Of a dict: the JSON forms of its keys; of an object: its attributes."""
    items: tuple[Tree, ...] = ()
    """The parts of a container."""
    type: str = ""
    """Of a container that can be built again: the name of its class."""

    @property
    def value(self) -> Any:
        """The value of a constant."""
        return json.loads(self.content) if self.kind == "constant" else None

    def leaves(self, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Tree]]:
        """Every tensor and constant, with the keys and positions that lead to it."""
        if not self.items:
            yield path, self
        for key, item in zip(self.labels(), self.items, strict=True):
            yield from item.leaves((*path, key))

    def parts(self) -> Iterator[Tree]:
        """This and everything in it."""
        yield self
        for item in self.items:
            yield from item.parts()

    def unrepeatable(self) -> str | None:
        """A constant of which only its place in memory is known, so that it can never be given again."""
        others = (part.content for part in self.parts() if part.kind == "other")
        return next((content for content in others if ADDRESS.search(content)), None)

    def tensors(self) -> list[tuple[str, ...]]:
        """The way to every tensor, in the order of their numbers."""
        return [path for path, leaf in sorted(self.leaves(), key=lambda pair: pair[1].index) if leaf.kind == "tensor"]

    def build(self, tensors: Sequence[Any], *, plain: bool = False) -> Any:
        """A value of this form out of these tensors.

        Containers whose class is not found come as plain ones, and with `plain` all of them.
        """
        if self.kind == "tensor":
            return tensors[self.index]
        parts = [item.build(tensors, plain=plain) for item in self.items]
        keys = [json.loads(key) for key in self.keys] if self.kind == "dict" else list(self.keys)
        cls = find_class(self.type) if self.type and not plain else None
        if cls is not None:
            return build_container(cls, keys, parts)
        if self.kind in ("dict", "object"):
            return dict(zip(keys, parts, strict=True))
        return tuple(parts) if self.kind == "tuple" else parts if self.kind == "list" else self.value

    def read(self, value: Any, name: str) -> Iterator[tuple[int, Tensor]]:
        """The tensors of a value, with their numbers; raises, naming the place, where it is not of this form."""
        if self.kind == "tensor":
            if not isinstance(value, Tensor):
                raise TypeError(f"the network takes a tensor as {name}, and was given a {type(value).__name__}")
            yield self.index, value
        elif self.kind in ("constant", "other"):
            self._check_constant(value, name)
        elif self.kind in ("tuple", "list"):
            if not isinstance(value, tuple | list) or len(value) != len(self.items):
                given = f"{len(value)} of them" if isinstance(value, tuple | list) else f"a {type(value).__name__}"
                raise TypeError(
                    f"the network takes a {self.kind} of {len(self.items)} as {name}, and was given {given}"
                )
            for index, (item, part) in enumerate(zip(self.items, value, strict=True)):
                yield from item.read(part, f"{name}.{index}")
        else:
            yield from self._read_keys(value, name)

    def _read_keys(self, value: Any, name: str) -> Iterator[tuple[int, Tensor]]:
        if self.kind == "dict":
            keys: list[Any] = [json.loads(key) for key in self.keys]
            if not isinstance(value, Mapping) or set(value) != set(keys):
                given = f"the keys {list(value)}" if isinstance(value, Mapping) else f"a {type(value).__name__}"
                raise TypeError(f"the network takes a dict with the keys {keys} as {name}, and was given {given}")
        else:
            keys, value = list(self.keys), value if isinstance(value, Mapping) else _held(value)
            if not isinstance(value, Mapping) or not set(keys) <= set(value):
                raise TypeError(f"the network takes an object with {', '.join(keys)} as {name}, and was given another")
        for key, item in zip(keys, self.items, strict=True):
            yield from item.read(value[key], f"{name}.{key}")

    def _check_constant(self, value: Any, name: str) -> None:
        same = repr(value) == self.content if self.kind == "other" else value == self.value and _kind(value) == self._is
        if not same:
            raise ValueError(
                f"{name} was {self.content} when the network was attached, and the deployed network computes that way "
                f"alone; it was given {value!r}. To fix this: attach and deploy once more with that value"
            )

    @property
    def _is(self) -> str:
        return _kind(self.value)

    def labels(self) -> list[str]:
        """The keys, attributes or positions of the parts of a container, as text."""
        if self.kind == "dict":
            return [str(json.loads(key)) for key in self.keys]
        return list(self.keys) if self.kind == "object" else [str(index) for index in range(len(self.items))]


def describe(value: Any, tensors: list[Tensor], around: Collection[int] = ()) -> Tree:
    """The form of a value; its tensors are put behind those in the list, each as often as it lies in the value.

    `around` are the identities of what the value lies in: an object may refer to what holds it.
    """
    if isinstance(value, Tensor):
        tensors.append(value)
        return Tree("tensor", index=len(tensors) - 1)
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        raise RuntimeError("the network returns a number that depends on the size of the batch")
    if isinstance(value, PLAIN):
        return Tree("constant", content=json.dumps(value))
    inside = (*around, id(value))
    if id(value) not in around:
        if isinstance(value, Mapping):
            items = tuple(describe(item, tensors, inside) for item in value.values())
            return Tree("dict", keys=tuple(_key(key) for key in value), items=items, type=name_class(type(value)))
        if isinstance(value, set | frozenset) and any(tensors_in(item, inside) for item in value):
            raise TypeError(
                "the network takes or returns tensors in a set, which has no order that tells them apart: use a tuple, "
                "a list or a dict"
            )
        if isinstance(value, tuple | list):
            kind = "tuple" if isinstance(value, tuple) else "list"
            items = tuple(describe(item, tensors, inside) for item in value)
            return Tree(kind, items=items, type=name_class(type(value)))
        parts, name = _attributes(value, tensors, inside)
        if parts:
            return Tree("object", keys=tuple(parts), items=tuple(parts.values()), type=name)
    return Tree("other", content=repr(value))


def tensors_in(value: Any, around: Collection[int] = ()) -> list[Tensor]:
    """Every tensor of a value, in order, each as often as it lies there."""
    tensors: list[Tensor] = []
    describe(value, tensors, around)
    return tensors


def _attributes(value: Any, tensors: list[Tensor], inside: Collection[int]) -> tuple[dict[str, Tree], str]:
    """The fields of a dataclass and its name, or the attributes of another object that have tensors in them."""
    parts: dict[str, Tree] = {}
    name = name_class(type(value))
    if name:
        before = len(tensors)
        parts = {field: describe(getattr(value, field), tensors, inside) for field in field_names(type(value))}
        if len(tensors) > before and not any(part.kind == "other" for form in parts.values() for part in form.parts()):
            return parts, name
        del tensors[before:]
        parts = {}
    if not isinstance(value, type | nn.Module):
        for name, item in _held(value).items():
            before = len(tensors)
            part = describe(item, tensors, inside)
            if len(tensors) > before:
                parts[name] = part
    return parts, ""


def _held(value: Any) -> dict[str, Any]:
    """The attributes of an object, whether it keeps them in a dict or in slots."""
    slots: dict[str, None] = {}
    for kind in reversed(type(value).__mro__):
        names = vars(kind).get("__slots__", ())
        slots |= dict.fromkeys([names] if isinstance(names, str) else names)
    held = {name: getattr(value, name) for name in slots if not name.startswith("__") and hasattr(value, name)}
    return held | getattr(value, "__dict__", {})


def _key(key: Any) -> str:
    return json.dumps(key if isinstance(key, PLAIN) else str(key))


def _kind(value: Any) -> str:
    """Whether a constant is a bool, a number, a text or nothing: 1 and 1.0 are the same, True is another."""
    return "number" if isinstance(value, int | float) and not isinstance(value, bool) else type(value).__name__
