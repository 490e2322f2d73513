"""Equalization through ReLU6: factors that no activation notices.

ReLU6 clips at 6, so that a factor does not pass it in general: min(x / s, 6) is not min(x, 6) / s. It does where
neither clips, that is where x < 6 and x / s < 6. The largest x of every channel is taken from data, with a margin:

    s >= margin * max(x) / 6    where margin * max(x) < 6, and s = 1 in the other channels

So the network computes the same on all data whose activations stay within the margin, and ReLU6 stays where it is.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from bayesbits.baselines.layerwise import observing_layers
from bayesbits.graph.layer_paths import LayerPaths
from bayesbits.utils.batches import call_without_labels
from bayesbits.utils.modes import evaluation_mode

MARGIN = 1.25
"""By how much an activation may exceed the largest one of its channel before the clip changes it."""
LIMIT = 6.0


def clipped_layers(paths: LayerPaths) -> dict[str, str]:
    """The layers that an `nn.ReLU6` follows directly, with the names of these modules.

    A module that clips something else too is left out, and so are the layers in front of it.
    """
    modules = dict(paths.model.named_modules())
    found: dict[str, str] = {}
    seen: dict[str, int] = {}
    for name, layer in paths.layers.items():
        for path in paths.modules_after(name):
            if type(modules.get(path)) is nn.ReLU6:
                found[name] = path
                seen[path] = seen.get(path, 0) + len(layer.calls)
    return {name: path for name, path in found.items() if seen[path] == paths.calls_of(path)}


@torch.no_grad()
def least_factors(
    model: nn.Module, paths: LayerPaths, layers: Iterable[str], batches: Iterable[Any]
) -> dict[str, Tensor]:
    """For every output channel of these layers the smallest factor s; NaN where s has to be 1."""
    largest: dict[str, Tensor] = {}

    def watch(name: str) -> Any:
        axis = -1 if paths.layers[name].kind == "linear" else 1

        def see(_input: Tensor, output: Tensor) -> None:
            seen = output.detach().transpose(0, axis).flatten(1).amax(1).double()
            largest[name] = torch.maximum(largest[name], seen) if name in largest else seen

        return see

    observers = {paths.layers[name].norm or name: watch(name) for name in layers}
    with evaluation_mode(model), observing_layers(model, observers):
        for batch in batches:
            call_without_labels(model, batch)
    return {name: _least(values.cpu()) for name, values in largest.items()}


def _least(largest: Tensor) -> Tensor:
    reach = MARGIN * largest.clamp_min(0.0)
    return torch.where(reach < LIMIT, reach / LIMIT, torch.nan)


def keep_below_clip(scale: Tensor, least: Mapping[int, Tensor], first: int) -> None:
    """Bring the factors of a group, whose first channel is given, back to where the clip does not change anything."""
    if first in least:
        part = scale[first : first + len(least[first])]
        part.copy_(torch.where(least[first].isnan(), 1.0, torch.maximum(part, least[first])))
