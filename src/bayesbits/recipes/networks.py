"""From a recipe's `[model]` to a network."""

from collections.abc import Mapping
from typing import Any

from torch import nn

from bayesbits.recipes.factories import call_factory
from bayesbits.zoo import models


def build(name: str, options: Mapping[str, Any], num_classes: int | None = None) -> tuple[nn.Module, Any]:
    """A network with random weights, and example inputs where its factory gives them.

    `name` is a network of the zoo, which is given `num_classes` unless `options` have it, or a factory of the user's,
    which returns a network or a pair of a network and example inputs.
    """
    if ":" not in name:
        if num_classes is not None:
            options = {"num_classes": num_classes, **options}
        try:
            return models.create(name, **options), None
        except TypeError as error:
            raise ValueError(f"the network {name!r} does not take these options: {error}") from error
    made = call_factory(name, options, "model")
    model, example = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    if not isinstance(model, nn.Module):
        raise ValueError(
            f"the model {name!r} returned a {type(made).__name__}; it returns a torch.nn.Module, or a pair of one and "
            "example inputs"
        )
    return model, example
