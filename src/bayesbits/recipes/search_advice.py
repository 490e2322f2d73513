"""Advice about a search: whether its gates can close, whether they did, and which settings to change.

A gate starts open at a logit of 6 and is closed below about -0.9. A step of Adam moves a logit by at most about the
learning rate, so that the number of steps and the learning rate bound how far a gate can move, for any penalty.
"""

from __future__ import annotations

from math import floor, log10

from bayesbits.training import SearchConfig
from bayesbits.training.config import gate_optimizer
from bayesbits.training.optimizers import scheduled_lr

_DISTANCE = 6.9  # from the logit of an open gate to that of a closed one
_SAFETY = 0.7  # single steps may be larger than the learning rate: below this part of the distance no gate can close
_LARGEST_LR = 0.1  # the largest learning rate that is advised
_ALMOST_ALL = 0.8  # a search that leaves this part of the bit operations compressed almost nothing
_PARTS = 100  # of the schedule, over which the learning rate is averaged


def before(config: SearchConfig, steps: int | None) -> str | None:
    """A warning before a search in which no gate can close; None where gates can close, or where `steps` is unknown."""
    reason = _too_short(config, steps)
    return None if reason is None else f"search: {reason}"


def after(relative_bops: float, open_bops: float, config: SearchConfig, steps: int | None) -> str:
    """What to change after a search that compressed almost nothing; otherwise empty.

    `relative_bops` are the bit operations that are left, and `open_bops` those with every gate open, both in percent.
    """
    if config.budget is not None or relative_bops < _ALMOST_ALL * open_bops:
        return ""
    mu = config.mu or 0.0
    reason = _too_short(config, steps)
    if mu == 0:
        reason = "search.mu is 0, and nothing asks for fewer bits: try --set search.mu=0.01"
    if reason is None:
        reason = (
            f"most gates are still open, so the penalty was too small or the search too short: try a larger search.mu "
            f"(now {mu:g}, such as --set search.mu={10 * mu:g}){_higher_rate(config)} or more search.epochs (now "
            f"{config.epochs})"
        )
    return (
        f"Almost nothing was compressed: {relative_bops:.3g}% of the bit operations are left, and with every gate open "
        f"they are {open_bops:.3g}%. Why: {reason}"
    )


def _higher_rate(config: SearchConfig) -> str:
    """The advice to raise a learning rate that was given."""
    return "" if config.gates is None else f", a higher search.gates.lr (now {config.gates.lr:g})"


def _too_short(config: SearchConfig, steps: int | None) -> str | None:
    """Why no gate can close; None where one can, or where `steps` is unknown."""
    if steps is None:
        return None
    gates = gate_optimizer(config, steps)
    if gates.optimizer != "adam" or gates.lr == 0:
        return None
    mean_lr = sum(scheduled_lr(gates, (part + 0.5) / _PARTS) for part in range(_PARTS)) / _PARTS
    reach = steps * mean_lr
    if reach >= _SAFETY * _DISTANCE:
        return None
    needed = 2 * gates.lr * _DISTANCE / reach if reach else _LARGEST_LR
    rate = min(_LARGEST_LR, _one_digit(needed))
    ways = [f"--set search.gates.lr={rate:g}"] if rate > gates.lr else []
    ways += [f"more search.epochs (now {config.epochs})"] if needed > _LARGEST_LR or not ways else []
    return (
        f"gates cannot close: {steps:,} steps at search.gates.lr = {gates.lr:g} move one by about "
        f"{reach:.2g} at most, and from open to closed it has {_DISTANCE:g} to go. Try {' and '.join(ways)}"
    )


def _one_digit(number: float) -> float:
    unit = 10.0 ** floor(log10(number))
    return float(f"{max(1, round(number / unit)) * unit:.1g}")
