"""Sizes of a network's inputs that may change from call to call, and the check of a call's shapes against them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class DynamicSize:
    """A size that may change, such as the batch or the length of a sequence; inputs may share it."""

    name: str
    """Its name: as in an ONNX file, and the one that was given as `torch.export.Dim`, where one was."""
    places: tuple[tuple[int, int], ...]
    """Where it stands: the positions of inputs, each with the dimension."""
    low: int = 1
    """The smallest size."""
    high: int | None = None
    """The largest size; None where there is none."""
    multiple: int = 1
    """The size has to be a multiple of this number."""

    def allows(self, size: int) -> bool:
        """Whether the network takes this size."""
        return self.low <= size and (self.high is None or size <= self.high) and size % self.multiple == 0

    def smaller(self, size: int) -> int | None:
        """A size of about one half of an allowed one, or the next that the network takes; None where there is none."""
        half = -(-max(size // 2, self.low) // self.multiple) * self.multiple
        return half if half < size and self.allows(half) else None

    def __str__(self) -> str:
        """What is allowed, such as "length of 1 to 512"."""
        if self.high is not None:
            words = f"{self.name} of {self.low} to {self.high}"
        else:
            words = f"any {self.name}" if self.low <= 1 else f"{self.name} of at least {self.low}"
        return words if self.multiple == 1 else f"{words} in multiples of {self.multiple}"


def shapes_in_words(
    names: Sequence[str], shapes: Sequence[Sequence[int]], sizes: Sequence[DynamicSize]
) -> tuple[str, ...]:
    """The shape of every input, such as "input_ids: batch x length", with what is allowed behind the names."""
    of = {place: size for size in sizes for place in size.places}
    lines = []
    for number, (name, shape) in enumerate(zip(names, shapes, strict=True)):
        parts = [of[number, dim].name if (number, dim) in of else str(size) for dim, size in enumerate(shape)]
        limits = dict.fromkeys(str(of[number, dim]) for dim in range(len(shape)) if (number, dim) in of)
        lines.append(
            f"{name}: {' x '.join(parts) or 'a single number'}" + (f" ({', '.join(limits)})" if limits else "")
        )
    return tuple(lines)


def check_shapes(
    names: Sequence[str], shapes: Sequence[Sequence[int]], sizes: Sequence[DynamicSize], tensors: Sequence[Tensor]
) -> None:
    """Raise a ValueError that names the input where tensors have sizes that the network does not take."""
    of = {place: size for size in sizes for place in size.places}
    found: dict[str, tuple[str, int]] = {}
    for number, (name, shape, tensor) in enumerate(zip(names, shapes, tensors, strict=True)):
        fits = tensor.dim() == len(shape)
        for dim, (stored, given) in enumerate(zip(shape, tensor.shape, strict=False)):
            size = of.get((number, dim))
            fits = fits and (given == stored if size is None else size.allows(given))
            if size is not None and fits:
                first, expected = found.setdefault(size.name, (name, given))
                if given != expected:
                    raise ValueError(
                        f"the input {name!r} has a {size.name} of {given}, and {first!r} one of {expected}: both have "
                        "to be the same"
                    )
        if not fits:
            given_words = " x ".join(map(str, tensor.shape)) or "a single number"
            takes = shapes_in_words(names, shapes, sizes)[number].removeprefix(f"{name}: ")
            raise ValueError(
                f"the input {name!r} has the shape {given_words}, and the network takes {takes}, as it was deployed: "
                "pass inputs of that shape, or attach and deploy once more with inputs of the other one"
            )
