"""`dynamic_shapes` as users give it to `deploy`, read into the sizes that are dynamic; and why others are fixed.

It has the form that torch.export takes: a dict by the names of arguments, or a tuple by their positions. For a tensor
it names the dimensions, in a dict or in a tuple with an entry for each: a `torch.export.Dim`, `Dim.AUTO`, or
`Dim.DYNAMIC`; None stands for a fixed size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from bayesbits.graph.dynamic_shapes import DynamicExport
from bayesbits.graph.size_trials import Place
from bayesbits.records.integer_network import Argument
from bayesbits.utils.pytree import Tree

AUTO, ALL = "auto", "all"
"""The batches and lengths that the network lets change; these and its image sizes."""


def read_dynamic_shapes(shapes: Any, arguments: Sequence[Argument]) -> dict[Place, Any] | None:
    """The sizes that a user wants to be dynamic, with what torch.export takes for each; None for "auto", "all".

    Raises a TypeError or ValueError that names the argument where the form is another one.
    """
    if isinstance(shapes, str) and shapes in (AUTO, ALL):
        return None
    if shapes is None or shapes is False:
        return {}
    if isinstance(shapes, Mapping):
        by_name = dict(shapes)
    elif isinstance(shapes, tuple | list):
        given = [argument.name for argument in arguments if list(argument.form.tensors()) or not argument.optional]
        if len(shapes) > len(given):
            raise ValueError(f"dynamic_shapes has {len(shapes)} entries, and the network takes {', '.join(given)}")
        by_name = dict(zip(given, shapes, strict=False))
    else:
        raise TypeError(
            f"dynamic_shapes is a {type(shapes).__name__}; it is 'auto', 'all', None for fixed sizes, or as "
            "torch.export takes it: a dict by the names of arguments, or a tuple"
        )
    known = {argument.name: argument for argument in arguments}
    unknown = [str(name) for name in by_name if name not in known]
    if unknown:
        raise ValueError(f"dynamic_shapes names {', '.join(unknown)}; the network takes {', '.join(known)}")
    marks: dict[Place, Any] = {}
    for name, spec in by_name.items():
        _read(known[name].form, spec, name, marks)
    return marks


def _read(form: Tree, spec: Any, name: str, marks: dict[Place, Any]) -> None:
    if spec is None:
        return
    if form.kind == "tensor":
        if not isinstance(spec, Mapping | tuple | list):
            raise TypeError(f"dynamic_shapes[{name!r}] is a {type(spec).__name__}; it is a dict by dimensions")
        dims = spec.items() if isinstance(spec, Mapping) else enumerate(spec)
        marks |= {(form.index, int(dim)): mark for dim, mark in dims if mark is not None}
        return
    entries: list[tuple[str, Tree | None, Any]]
    if isinstance(spec, Mapping) and form.kind in ("dict", "object"):
        parts = dict(zip(form.labels(), form.items, strict=True))
        entries = [(str(key), parts.get(str(key)), value) for key, value in spec.items()]
    elif isinstance(spec, tuple | list) and len(spec) == len(form.items):
        entries = [(str(index), item, spec[index]) for index, item in enumerate(form.items)]
    else:
        raise TypeError(f"dynamic_shapes[{name!r}] does not have the containers of the argument")
    for key, part, inner in entries:
        if part is None:
            raise ValueError(f"dynamic_shapes[{name!r}] names {key}, which the argument does not hold")
        _read(part, inner, f"{name}.{key}", marks)


def fixed_size_notes(found: DynamicExport, names: Sequence[str], examples: Sequence[Tensor]) -> list[str]:
    """A line for every batch, sequence and image whose size is fixed; channels and features always are."""
    dynamic = {place for size in found.sizes for place in size.places}
    notes = []
    batched = [number for number, example in enumerate(examples) if example.dim()]
    if batched and not any((number, 0) in dynamic for number in batched):
        said = next((found.reasons[number, 0] for number in batched if (number, 0) in found.reasons), "")
        notes.append(
            "the network takes only batches of the size that it was attached with: "
            + (said or "dynamic_shapes leaves it fixed")
        )
    for number, (name, example) in enumerate(zip(names, examples, strict=True)):
        dims = [dim for dim in _expected(example) if (number, dim) not in dynamic]
        if dims and not (example.dim() == 3 and example.is_floating_point() and len(dims) < 2):
            sizes = " x ".join(str(example.shape[dim]) for dim in dims)
            said = next((found.reasons[number, dim] for dim in dims if (number, dim) in found.reasons), "")
            left = "dynamic_shapes leaves it fixed" + ('; dynamic_shapes="all" would not' if example.dim() > 3 else "")
            notes.append(f"{name} has the fixed size {sizes}: {said or left}")
    return notes


def _expected(example: Tensor) -> range:
    """The dimensions of a tensor that users expect to change beside the batch: of tokens, sequences and images."""
    if not example.is_floating_point() or example.dim() == 3:
        return range(1, example.dim())
    return range(2, example.dim()) if example.dim() > 3 else range(0)
