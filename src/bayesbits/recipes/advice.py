"""Whether the gates of a search can close and did, and what to change where not.

A gate starts open, at a logit of 6, and is closed below about -0.9. A step of Adam moves it by at most about its rate,
so that steps and rate together say how far any gate can get, whatever the penalty.
"""

from __future__ import annotations

from math import floor, log10

from bayesbits.training import SearchConfig
from bayesbits.training.optimizers import scheduled_lr

_WAY = 6.9
_SURELY = 0.7  # of the way: below this no gate gets there, though single steps may be larger than the rate
_MOST_RATE = 0.1
_HARDLY = 0.8  # of the bit operations with every gate open
_PARTS = 100


def before(config: SearchConfig, steps: int | None) -> str | None:
    """Said before a search in which no gate can close; None where gates can, or where nobody knows."""
    reason = _too_short(config, steps)
    return None if reason is None else f"search: {reason}"


def after(relative_bops: float, open_bops: float, config: SearchConfig, steps: int | None) -> str:
    """Said behind a search that compressed almost nothing; otherwise empty. `open_bops`: with every gate open."""
    if relative_bops < _HARDLY * open_bops:
        return ""
    reason = _too_short(config, steps)
    if config.mu == 0:
        reason = "search.mu is 0, and nothing asks for fewer bits: try --set search.mu=0.01"
    if reason is None:
        reason = (
            f"most gates are still open, so the penalty was too small or the search too short: try a larger search.mu "
            f"(now {config.mu:g}, such as --set search.mu={10 * config.mu:g}), a higher search.gates.lr (now "
            f"{config.gates.lr:g}) or more search.epochs (now {config.epochs})"
        )
    return (
        f"Almost nothing was compressed: {relative_bops:.3g}% of the bit operations are left, and with every gate open "
        f"they are {open_bops:.3g}%. Why: {reason}"
    )


def _too_short(config: SearchConfig, steps: int | None) -> str | None:
    """Why no gate can get from open to closed; None where one can, or where nobody knows."""
    if steps is None or config.gates.optimizer != "adam" or config.gates.lr == 0:
        return None
    mean_rate = sum(scheduled_lr(config.gates, (part + 0.5) / _PARTS) for part in range(_PARTS)) / _PARTS
    reach = steps * mean_rate
    if reach >= _SURELY * _WAY:
        return None
    needed = 2 * config.gates.lr * _WAY / reach if reach else _MOST_RATE
    rate = min(_MOST_RATE, _one_digit(needed))
    ways = [f"--set search.gates.lr={rate:g}"] if rate > config.gates.lr else []
    ways += [f"more search.epochs (now {config.epochs})"] if needed > _MOST_RATE or not ways else []
    return (
        f"gates cannot close: {steps:,} steps at search.gates.lr = {config.gates.lr:g} move one by about "
        f"{reach:.2g} at most, and from open to closed it has {_WAY:g} to go. Try {' and '.join(ways)}"
    )


def _one_digit(number: float) -> float:
    unit = 10.0 ** floor(log10(number))
    return float(f"{max(1, round(number / unit)) * unit:.1g}")
