"""The least sum of small tables, each of them over the choices of a few variables: dynamic programming, and exact.

Variables are eliminated one after the other: all tables with a variable become one table over its neighbors, which says
what is least for each of their choices. The order depends on the variables alone, and is found once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Table = NDArray[np.float64]


@dataclass(frozen=True)
class _Step:
    """The elimination of one variable."""

    name: str
    others: tuple[str, ...]
    """The variables of the table that is made."""
    tables: tuple[tuple[int, tuple[int, ...], tuple[int, ...]], ...]
    """The tables that are added: number, order of axes, and shape over (name, *others)."""


class TableSum:
    """A sum of tables over variables with a few choices each; `least` finds the least one."""

    def __init__(self, scopes: Sequence[tuple[str, ...]], sizes: Mapping[str, int]) -> None:
        """`scopes` are the variables of every table, one for each axis, and `sizes` the numbers of their choices."""
        self._steps: list[_Step] = []
        waiting = dict(enumerate(scopes))
        left = dict.fromkeys(name for scope in scopes for name in scope)
        while left:
            neighbors: dict[str, set[str]] = {name: set() for name in left}
            for scope in waiting.values():
                for name in scope:
                    neighbors[name].update(scope)
            name = min(left, key=lambda one: len(neighbors[one]))
            scope = (name, *sorted(neighbors[name] - {name}))
            added = [(number, own) for number, own in waiting.items() if name in own]
            tables = []
            for number, own in added:
                order = tuple(own.index(one) for one in scope if one in own)
                tables.append((number, order, tuple(sizes[one] if one in own else 1 for one in scope)))
                del waiting[number]
            waiting[len(scopes) + len(self._steps)] = scope[1:]
            self._steps.append(_Step(name, scope[1:], tuple(tables)))
            del left[name]

    def least(self, tables: Sequence[Table]) -> tuple[float, dict[str, int]]:
        """The least sum, and the choice of every variable; of equal ones the first."""
        waiting = dict(enumerate(tables))
        best: list[NDArray[np.intp]] = []
        for step in self._steps:
            total: Table | float = 0.0
            for number, order, shape in step.tables:
                total = total + waiting.pop(number).transpose(order).reshape(shape)
            found = np.asarray(total)
            best.append(found.argmin(0))
            waiting[len(tables) + len(best) - 1] = found.min(0)
        chosen: dict[str, int] = {}
        for step, choice in zip(reversed(self._steps), reversed(best), strict=True):
            chosen[step.name] = int(choice[tuple(chosen[other] for other in step.others)])
        return sum(table.item() for table in waiting.values()), chosen
