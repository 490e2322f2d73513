"""Trying a network at other sizes of its inputs: which sizes its own code lets change, and what it says otherwise.

Sizes that are equal in the examples are changed together first (the tokens and their mask, the two sides of an image),
then by dimension, then alone. The batch is the first size that several inputs share.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from bayesbits.graph.flat_network import FlatNetwork, ForwardError
from bayesbits.utils.modes import evaluation_mode

Place = tuple[int, int]
"""The position of an input, and a dimension of it."""
Outputs = tuple[Tensor, ...]
IMAGE_DIMS = 4
"""The dimensions of a batch of images; volumes have one more."""


@dataclass(frozen=True)
class SizeGroup:
    """Sizes that change together."""

    places: tuple[Place, ...]
    size: int
    """Their size in the examples."""
    far: int
    """Another size, which the network takes: one half or the double."""

    @property
    def is_batch(self) -> bool:
        return any(dim == 0 for _, dim in self.places)

    def near(self) -> Iterator[int]:
        """Sizes 1, 2, 4, up to 64 away, of which the first that works tells the multiple that a size has to be."""
        steps = [2**power for power in range(7)]
        yield from (self.size - step for step in steps if self.size - step >= 2 and self.size % step == 0)
        yield from (self.size + step for step in steps if self.size % step == 0)


@dataclass
class SizeTrials:
    """Runs a copy of a network, so that what it keeps between calls does not change."""

    flat: FlatNetwork
    refusals: dict[Place, str] = field(default_factory=dict)
    """What the network said where a size was changed that it does not let change."""

    def __post_init__(self) -> None:
        self.whole = self.examples = self.flat.examples()
        self._flat = self.flat.with_copied_network()

    def outputs(self, tensors: Sequence[Tensor]) -> Outputs | Exception:
        """What the network returns for these tensors, or what it raises."""
        with warnings.catch_warnings(), evaluation_mode(self._flat), torch.no_grad(), torch.random.fork_rng([]):
            warnings.simplefilter("ignore")
            try:
                outputs: Outputs = self._flat(*(tensor.clone() for tensor in tensors))
                return outputs
            except ForwardError as error:
                return error.__cause__ if isinstance(error.__cause__, Exception) else error

    def groups(self, *, images: bool = True) -> list[SizeGroup]:
        """The sizes that the network lets change, the batch first; without `images` those of images stay fixed."""
        batch = self._batch()
        found, taken = [batch], set(() if batch is None else batch.places)
        if batch is not None and batch.size > 2:  # two examples are enough to try the other sizes
            self.examples = tuple(resized(self.examples, batch.places, 2))
        sizes: dict[int, list[Place]] = {}
        for number, example in enumerate(self.examples):
            for dim, size in enumerate(example.shape):
                left_fixed = dim >= 2 and example.dim() >= IMAGE_DIMS and not images
                if (number, dim) not in taken and dim > 0 and size > 1 and not left_fixed:
                    sizes.setdefault(size, []).append((number, dim))
        for size, places in sizes.items():
            found += self._parts(places, size)
        return [group for group in found if group is not None]

    def _batch(self) -> SizeGroup | None:
        for size in dict.fromkeys(len(x) for x in self.examples if x.dim()):
            places = [(number, 0) for number, x in enumerate(self.examples) if x.dim() and len(x) == size]
            group = self._try(places, size, (2 if size > 2 else size + 1, 2 * size))
            if group is not None:
                return group
        return None

    def _parts(self, places: list[Place], size: int) -> list[SizeGroup]:
        """The largest parts of these places that can change together."""
        by_dimension = [[place for place in places if place[1] == dim] for dim in dict.fromkeys(d for _, d in places)]
        for parts in ([places], by_dimension, [[place] for place in places]):
            tried = [self._try(part, size, (size // 2 if size > 3 else size + 1, 2 * size)) for part in parts]
            accepted = [group for group in tried if group is not None]
            if accepted or len(places) == 1:
                return accepted
        return []

    def _try(self, places: list[Place], size: int, others: Iterable[int]) -> SizeGroup | None:
        said = ""
        for other in others:
            result = self.outputs(resized(self.examples, places, other)) if other else None
            if isinstance(result, tuple):
                return SizeGroup(tuple(places), size, other)
            if result is not None:
                first = (str(result).strip() or "no message").splitlines()[0]
                said = said or f"with {other} instead of {size} it raises {type(result).__name__}: {first}"
        for place in places:
            self.refusals.setdefault(place, said)
        return None


def resized(examples: Sequence[Tensor], places: Iterable[Place], size: int) -> list[Tensor]:
    """The examples with other sizes at these places: shortened, or repeated from their beginning."""
    tensors = list(examples)
    for number, dim in places:
        indices = torch.arange(size, device=tensors[number].device) % tensors[number].shape[dim]
        tensors[number] = tensors[number].index_select(dim, indices)
    return tensors
