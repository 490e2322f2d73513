"""The `Budget`: limits on the cost of the final network, given as numbers or as text such as "0.5% bops" or "2.5 ms".

A limit has the name of the field of `Cost` that it bounds; `counted` is what a plan comes to under each limit. To add
one: a field here, a field in `Cost`, and in `compression.expected_costs` the expectation of that cost.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Self

from bayesbits.compression.table_files import as_table
from bayesbits.cost import Cost, CostModel
from bayesbits.records.latency_table import LatencyTable
from bayesbits.records.plan import Plan
from bayesbits.records.serialization import Record
from bayesbits.utils.checks import is_number

_WORDS = {"relative_bops": "% bops", "bops": " BOPs", "weight_bytes": " bytes", "latency_ms": " ms"}
_PREDICTED = {"latency_ms": " predicted"}
_BOPS = {"bops": 1e0, "kbops": 1e3, "mbops": 1e6, "gbops": 1e9, "tbops": 1e12, "pbops": 1e15}
_BYTES = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_MILLISECONDS = {"us": 1e-3, "µs": 1e-3, "ms": 1.0, "s": 1e3}
_SAME_UNIT = {"byte": "B", "bytes": "B", "KB": "kB"}
_SEVERAL = re.compile(r"\s*(?:,\s|;|\band\b)\s*")
_LIMIT = re.compile(r"([-+]?(?:\d{1,3}(?:,\d{3})+|\d[\d_]*)?(?:\.\d+)?(?:[eE][-+]?\d+)?)\s*(.*)", re.DOTALL)
_PERCENT = re.compile(r"%\s*(?:of\s+)?(?:the\s+)?(?:bops|bit operations)", re.IGNORECASE)
_FORMS = '"0.5% bops" (of the float network), "1.2 GBOPs", "500 kB", "2.1 MB" or "2.5 ms"'


@dataclass(frozen=True)
class Budget(Record):
    """The most that the final network may cost; with several limits, all of them hold.

    Args:
        relative_bops: The most bit operations, in percent of those of the float network (32 x 32 bits).
        bops: The most bit operations.
        weight_bytes: The most bytes of packed weights, biases, and parameters that stay in float.
        latency_ms: The most milliseconds of one call, as `table` predicts them.
        table: The latency table of the network, or its file; `bayesbits measure` writes it.
        version: The version of the JSON form.

    Raises:
        ValueError: There is no limit, one is not a positive number, or there is no table for a limit in milliseconds.

    Example::

        >>> import bayesbits as bb
        >>> bb.Budget(relative_bops=0.5, weight_bytes=500_000)
        Budget(relative_bops=0.5, bops=None, weight_bytes=500000, latency_ms=None, version=1)
        >>> print(bb.Budget.parse("0.5% bops, 500 kB"))
        0.5% bops, 500 kB
    """

    VERSION: ClassVar[int] = 1

    relative_bops: float | None = None
    """The most bit operations, in percent of those of the float network (32 x 32 bits)."""
    bops: float | None = None
    """The most bit operations."""
    weight_bytes: float | None = None
    """The most bytes of packed weights, biases, and parameters that stay in float."""
    latency_ms: float | None = None
    """The most milliseconds of one call, as `table` predicts them."""
    table: LatencyTable | None = field(default=None, repr=False)
    """The latency table of the network; a file may be given, which is read."""
    version: int = VERSION
    """The version of the JSON form."""

    def __post_init__(self) -> None:
        for name in _WORDS:
            value = getattr(self, name)
            if value is not None and (not is_number(value) or value <= 0):
                raise ValueError(f"Budget.{name} is {value!r}; it is a positive number")
        if not self.limits:
            raise ValueError(f"a Budget has at least one limit: give {', '.join(_WORDS)} or several of them")
        if self.relative_bops is not None and self.relative_bops > 100:
            raise ValueError(
                f"Budget.relative_bops is {self.relative_bops:g}; it is in percent of the float network's bit "
                "operations, and at most 100. For a number of bit operations give bops"
            )
        object.__setattr__(self, "table", as_table(self.table, "Budget.table"))
        if self.latency_ms is not None and self.table is None:
            raise ValueError(
                f"a limit of {self.latency_ms:g} ms needs the latency table of the network on your machine: write it "
                "by `bayesbits measure NETWORK --output table.json`, and give it as Budget(latency_ms=..., table=...), "
                "or on the command line as --latency-table table.json"
            )
        if self.latency_ms is None and self.table is not None:
            raise ValueError('there is a latency table, and no limit in milliseconds: give latency_ms, or "2.5 ms"')
        super().__post_init__()

    @classmethod
    def parse(cls, text: str, table: LatencyTable | str | Path | None = None) -> Self:
        """Read a budget from text: one limit with its unit, or several with commas between them.

        Args:
            text: Such as "0.5% bops", "1.2 GBOPs", "500 kB", "2.1 MB", "2.5 ms" or "0.5% bops, 500 kB". A kB has 1000
                bytes, a KiB 1024.
            table: The latency table, or its file, for a limit in milliseconds.

        Returns:
            The budget.

        Raises:
            ValueError: A limit has no unit or one that is not known, is not positive, or is given twice.
        """
        if not isinstance(text, str):
            raise ValueError(f"the budget is {text!r}; it is text with a unit, such as {_FORMS}")
        limits: dict[str, float] = {}
        for part in _SEVERAL.split(text.strip()):
            name, value = _parse_limit(part, text)
            if name in limits:
                words = {"weight_bytes": "bytes", "latency_ms": "latency"}.get(name, "bit operations")
                raise ValueError(f"the budget {text!r} limits the {words} twice; give one of the two limits")
            limits[name] = value
        given: dict[str, Any] = {**limits, "table": as_table(table, "the latency table")}
        return cls(**given)

    @property
    def limits(self) -> dict[str, float]:
        """The limits that are given, by the name of the field of `Cost` that each bounds."""
        return {name: getattr(self, name) for name in _WORDS if getattr(self, name) is not None}

    def allows(self, cost: Cost) -> bool:
        """Whether a cost is within all limits.

        Args:
            cost: What `Compressor.cost` returns; for a limit in milliseconds with this budget's table.
        """
        return all(_of(cost, name) <= limit for name, limit in self.limits.items())

    def used(self, cost: Cost) -> float:
        """The largest part of a limit that a cost takes; above 1 it is over the budget.

        Args:
            cost: What `Compressor.cost` returns; for a limit in milliseconds with this budget's table.
        """
        return max(_of(cost, name) / limit for name, limit in self.limits.items())

    def describe(self, cost: Cost) -> str:
        """What a cost comes to, in the units of the limits.

        Args:
            cost: What `Compressor.cost` returns; for a limit in milliseconds with this budget's table.
        """
        return ", ".join(_say(name, _of(cost, name), exact=False) + _PREDICTED.get(name, "") for name in self.limits)

    def least(self, cost: Cost) -> str:
        """The smallest budget with these limits that allows a cost, in four digits.

        Args:
            cost: What `Compressor.cost` returns; for a limit in milliseconds with this budget's table.
        """
        return ", ".join(least_limit_text(name, _of(cost, name)) + _PREDICTED.get(name, "") for name in self.limits)

    def __str__(self) -> str:
        return ", ".join(limit_text(name, limit) for name, limit in self.limits.items())


def limit_text(name: str, limit: float) -> str:
    """A limit with its unit, which `Budget.parse` reads as the same number."""
    return _say(name, limit)


def least_limit_text(name: str, cost: float) -> str:
    """The smallest limit of four digits that allows a cost, with its unit."""
    digit = 10.0 ** (math.floor(math.log10(cost)) - 3) if cost > 0 else 1.0
    return _say(name, cost if float(f"{cost:.4g}") >= cost else cost + digit / 2, exact=False)


def counted(budget: Budget, cost_model: CostModel, plan: Plan) -> dict[str, float]:
    """What a plan costs under each limit of a budget, by the limit's name: the numbers that have to be within it."""
    cost = cost_model.count(plan, budget.table)
    return {name: _of(cost, name) for name in budget.limits}


def _of(cost: Cost, limit: str) -> float:
    """The part of a cost that a limit bounds."""
    value = getattr(cost, limit)
    if value is None:
        raise ValueError(f"this cost has no {limit}: count it with the table, compressor.cost(plan, budget.table)")
    return float(value)


def as_budget(given: Any, what: str, table: LatencyTable | str | Path | None = None) -> Budget | None:
    """A budget from what a user gives: a `Budget`, text, a dict with its fields, or None; `what` names the option.

    `table` is the latency table that is given beside it, if there is one.
    """
    if given is None:
        if table is not None:
            raise ValueError(f'there is a latency table and no budget: give {what}, such as "2.5 ms"')
        return None
    try:
        if isinstance(given, Budget):
            return given if table is None else replace(given, table=as_table(table, "the latency table"))
        if isinstance(given, str):
            return Budget.parse(given, table)
        if isinstance(given, dict):
            return Budget(**given) if table is None else Budget(**given, table=as_table(table, "the latency table"))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{what}: {error}") from None
    raise ValueError(f"{what} is {given!r}; it has a unit: a Budget, or text such as {_FORMS}")


def _parse_limit(part: str, text: str) -> tuple[str, float]:
    found = _LIMIT.fullmatch(part)
    number, unit = (found.group(1), found.group(2).strip()) if found else ("", "")
    if not number or not any(map(str.isdigit, number)):
        raise ValueError(f"the budget {text!r} is not understood; write a number and a unit, such as {_FORMS}")
    name, scale = _unit(unit, text)
    value = float(number.replace(",", "").replace("_", ""))
    if value <= 0:
        raise ValueError(f"the budget {text!r} is not positive; no network costs so little")
    return name, value * scale


def _unit(unit: str, text: str) -> tuple[str, float]:
    """The limit that a unit belongs to, and how much one of it is."""
    if _PERCENT.fullmatch(unit):
        return "relative_bops", 1.0
    if unit.lower() in _BOPS:
        return "bops", _BOPS[unit.lower()]
    if (scale := _BYTES.get(_SAME_UNIT.get(unit, unit))) is not None:
        return "weight_bytes", scale
    if unit in _MILLISECONDS:
        return "latency_ms", _MILLISECONDS[unit]
    if unit in ("", "%"):
        raise ValueError(f"the budget {text!r} does not say of what: write a unit, such as {_FORMS}")
    raise ValueError(f"the budget {text!r} has the unit {unit!r}, which is not known; write {_FORMS}")


def _say(name: str, value: float, exact: bool = True) -> str:
    """A limit or a cost with its unit: `exact` is text that `parse` reads as the same number."""
    if name == "relative_bops":
        return f"{_shortest(value, exact)}% bops"
    if name == "latency_ms":
        return f"{_shortest(value, exact)} ms"
    units = {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9}
    if name == "bops":
        units = {"BOPs": 1e0, "kBOPs": 1e3, "MBOPs": 1e6, "GBOPs": 1e9, "TBOPs": 1e12}
    for unit, scale in reversed(units.items()):
        text = _shortest(value / scale, exact)
        if value >= scale and (not exact or float(text) * scale == value):
            return f"{text} {unit}"
    return f"{value!r} {next(iter(units))}"


def _shortest(value: float, exact: bool) -> str:
    text = f"{value:.4g}"
    return text if not exact or float(text) == value else repr(value)
