"""Tensors that do not show the factor of a gate: they are zero where it is closed, and else the same for every opening.

A sign, a comparison and a cast to integers are such operations. Removing channels behind them is exact, but a gate in
front of them would get no gradient from the loss: the penalty alone would close it. So their channels stay, unless the
tensor meets what it was made from, as in x * (x > 0).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor, fx

from bayesbits.graph.channel_labels import ChannelClasses, Labels, collapse, collapse_together
from bayesbits.graph.channel_rules import MOVES, PADS, REDUCTIONS, RESAMPLES, SAME
from bayesbits.graph.exported_program import is_float, operation, shape
from bayesbits.graph.pointwise import ignores_factor, is_pointwise

PASSED_ON = frozenset((*MOVES, *SAME, *PADS, *REDUCTIONS, "getitem"))
"""Operations behind which a factor that was lost is still lost, and one that was not is not."""


class LostFactors:
    """The tensors behind operations that take the factor of a gate away, with the name of the operation."""

    def __init__(self, labels: Mapping[fx.Node, Labels], classes: ChannelClasses) -> None:
        self._labels, self._classes = labels, classes
        self._lost_by: dict[fx.Node, str] = {}

    def follow(self, node: fx.Node) -> None:
        """Look at an operation whose inputs have their labels; keep the channels whose factor gets lost in it."""
        if node.meta.get("val") is None:  # a check that makes nothing
            return
        name = operation(node)
        carrying = [used for used in node.all_input_nodes if self._has_channels(used)]
        lost = [used for used in carrying if used in self._lost_by]
        if is_pointwise(node):
            self._follow_pointwise(node, carrying)
        elif name in SAME and carrying and is_float(carrying[0]) and not is_float(node):
            self._lost_by[node] = name.lstrip("_")
        elif lost and len(lost) == len(carrying) and (name in PASSED_ON or RESAMPLES.match(name)):
            self._lost_by[node] = self._lost_by[lost[0]]
        else:
            self._keep(lost)

    def _follow_pointwise(self, node: fx.Node, carrying: Sequence[fx.Node]) -> None:
        """Operands with the same channels have the same gates: one of them that shows the factor is enough."""
        operands = list(node.all_input_nodes)
        shown: list[fx.Node] = []
        for used in carrying:
            alike = [other for other in carrying if other not in self._lost_by and self._equal(node, used, other)]
            if alike and not ignores_factor(node, operands, [other not in alike for other in operands]):
                shown.append(used)
        hidden = [used for used in carrying if used not in shown]
        if shown:
            self._keep(hidden, operation(node))
        elif hidden:
            self._lost_by[node] = self._lost_by.get(hidden[0], operation(node))

    def _keep(self, nodes: Sequence[fx.Node], name: str = "") -> None:
        for node in nodes:
            what = self._lost_by.get(node, name)
            for tensor in self._tensors(node):
                self._classes.keep(tensor, f"passes {what}, which takes the factor of a gate in front of it away")

    def _has_channels(self, node: fx.Node) -> bool:
        return any(bool((collapse(tensor) >= 0).any()) for tensor in self._tensors(node))

    def _tensors(self, node: fx.Node) -> Sequence[Tensor]:
        """The labels of all tensors that a node makes."""
        labels = self._labels.get(node, [])
        return labels if isinstance(labels, list) else [labels]

    def _equal(self, node: fx.Node, one: fx.Node, other: fx.Node) -> bool:
        """Whether two operands have the same channels everywhere."""
        if one is other:
            return True
        labels = [self._tensors(used)[0].expand(shape(node)) for used in (one, other)]
        first, second = collapse_together(labels)
        return bool((first == second).all())
