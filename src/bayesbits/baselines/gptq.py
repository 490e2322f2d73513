"""GPTQ: the columns of a weight are rounded one after the other, and each error is compensated by the columns left.

The squared error of a linear layer's output over inputs X, |X (w - q)|^2 for every output channel, has the curvature
H = X^T X. After column j is rounded, the best change of the columns F that are not yet rounded is

    w_F -= (w_j - q_j) / [H_F^-1]_jj [H_F^-1]_jF

and all inverses H_F^-1 that this takes are rows of one Cholesky factor of H^-1. The method is that of Frantar et al.,
*GPTQ: Accurate Post-Training Quantization for Generative Pre-trained Transformers*, 2023, with columns in the order of
their curvature, the largest first. It takes one pass over the data, and no learning: seconds for each layer.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from bayesbits.baselines.adaround_rounding import RoundingGrid
from bayesbits.baselines.layerwise import (
    Progress,
    attached_layer,
    check_batches,
    check_fixed,
    observing_layers,
)
from bayesbits.baselines.reconstruction_run import (
    changing_parameters,
    obstacles,
    read_paths,
    skipped_layers,
    write_codes,
)
from bayesbits.baselines.rounding_report import RoundedUnit, RoundingReport
from bayesbits.compression.compressor import Compressor
from bayesbits.posttraining.quantizer_state import as_float_network
from bayesbits.utils.batches import call_without_labels
from bayesbits.utils.progress import progress_bar

BLOCK = 128
"""So many columns are rounded before the columns behind them are changed, all at once."""


def gptq(
    compressor: Compressor,
    batches: Iterable[Any],
    *,
    positions: Callable[[Any], Tensor] | None = None,
    damping: float = 0.01,
    progress: Progress | None = None,
) -> RoundingReport:
    """Choose the codes of the weights of linear layers so that their errors compensate for each other.

    Only weights change. Inputs are those of the float network. A layer keeps its nearest codes where the chosen ones
    are not better on the data. Where the call fails, all weights are restored.

    Args:
        compressor: The compressor of a network in evaluation mode, after `Compressor.fix`.
        batches: Batches of inputs, as for `Compressor.calibrate`.
        positions: A function of a batch that says which of its positions count, as a mask: `lambda batch:
            batch["attention_mask"]` leaves out the padding of sentences. Layers whose inputs have other positions count
            all of theirs.
        damping: This part of the mean curvature is added to the curvature of every column.
        progress: A function that is called with a layer's name, its number and the number of layers.

    Returns:
        The errors of every layer before and after, and the layers that were skipped.

    Raises:
        ValueError: If the plan is not fixed, the network is in training mode, or `damping` is not positive.

    Example::

        >>> import torch
        >>> import bayesbits as bb
        >>> model, x = torch.nn.Sequential(torch.nn.Linear(8, 4)).eval(), torch.randn(64, 8)
        >>> compressor = bb.attach(model, x, bb.Spec(bits=(2, 4, 8)))
        >>> compressor.fix(bb.baselines.uniform(compressor, [x], weights=2, activations=8))
        >>> report = bb.baselines.gptq(compressor, [x])
        >>> report.units[0].error <= report.units[0].nearest_error
        True
    """
    check_fixed(compressor, "gptq")
    if not damping > 0:
        raise ValueError(f"damping is {damping!r}; it is a number above 0")
    held = check_batches(batches, "gptq")
    reasons = obstacles(compressor, read_paths(compressor, held[0]))
    for layer in compressor.topology.layers:
        if layer.kind != "linear" and reasons[layer.name] is None:
            reasons[layer.name] = "it is a convolution, and this is for linear layers"
    names = [name for name, reason in reasons.items() if reason is None]
    curvatures = _curvatures(compressor, names, held, positions)
    rounded = []
    with changing_parameters(compressor), progress_bar("gptq", len(names)) as advance:
        for number, name in enumerate(names, start=1):
            rounded.append(_round(compressor, name, *curvatures.pop(name), damping))
            advance(name)
            if progress is not None:
                progress(name, number, len(names))
    return RoundingReport(compressor.plan(), tuple(rounded), skipped_layers(reasons))


def _curvatures(
    compressor: Compressor, names: list[str], batches: list[Any], positions: Callable[[Any], Tensor] | None
) -> dict[str, tuple[Tensor, int]]:
    """X^T X of every layer over the positions that count, in float64, and the number of these positions."""
    found: dict[str, tuple[Tensor, int]] = {}
    counted: Tensor | None = None

    def observer(name: str) -> Any:
        def observe(x: Tensor, _: Tensor) -> None:
            masked = counted is not None and counted.shape == x.shape[:-1]
            rows = (x[counted.bool()] if masked and counted is not None else x.flatten(0, -2)).detach().double()
            before, count = found.get(name, (0.0, 0))
            found[name] = (rows.T @ rows + before, count + len(rows))

        return observe

    with as_float_network(compressor.attachment), observing_layers(compressor.model, {n: observer(n) for n in names}):
        for batch in batches:
            counted = None if positions is None else positions(batch)
            call_without_labels(compressor.model, batch)
    return found


@torch.no_grad()
def _round(compressor: Compressor, name: str, curvature: Tensor, count: int, damping: float) -> RoundedUnit:
    """Choose the codes of one layer, and write them into its weight."""
    module = attached_layer(compressor, name)
    assert module is not None
    grid, weight = RoundingGrid.of(module), module.weight.detach().double()
    step = grid.step.double().expand(len(weight), 1)
    nearest = module.folded_codes()
    codes = _compensated_codes(weight, step, grid.bounds, curvature, damping)
    errors = [
        _error(weight - numbers, curvature) / count for numbers in (module.effective_weight().double(), codes * step)
    ]
    if errors[1] < errors[0]:
        write_codes(module, (codes * step).to(module.weight.dtype), codes.to(nearest.dtype), name)
    else:
        errors[1] = errors[0]
    moved = int((module.folded_codes() != nearest).sum())
    return RoundedUnit(name, weight.numel(), moved, errors[0], errors[1], (name,))


def _compensated_codes(
    weight: Tensor, step: Tensor, bounds: tuple[int, int], curvature: Tensor, damping: float
) -> Tensor:
    """The codes of a weight [outputs, inputs]; `step` is [outputs, 1]."""
    diagonal = curvature.diagonal()
    damped = curvature + (damping * diagonal.mean().clamp_min(1e-30)) * torch.eye(len(curvature)).to(curvature)
    order = diagonal.argsort(descending=True)
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(damped[order][:, order]))
    factor = torch.linalg.cholesky(inverse, upper=True)
    left, codes = weight[:, order].clone(), torch.zeros_like(weight)
    for start in range(0, weight.shape[1], BLOCK):
        end = min(start + BLOCK, weight.shape[1])
        errors = torch.zeros_like(left[:, start:end])
        for column in range(start, end):
            codes[:, column] = torch.round(left[:, column] / step[:, 0]).clamp(*bounds)
            error = (left[:, column] - codes[:, column] * step[:, 0]) / factor[column, column]
            left[:, column:end] -= error[:, None] * factor[column, column:end]
            errors[:, column - start] = error
        left[:, end:] -= errors @ factor[start:end, end:]
    return codes[:, order.argsort()]


def _error(difference: Tensor, curvature: Tensor) -> float:
    """The squared error of the output, summed over channels and positions."""
    return float(((difference @ curvature) * difference).sum())
