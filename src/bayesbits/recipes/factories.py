"""Networks and functions by the names that a recipe gives them.

A name is that of a network of the zoo, or "package.module:function" for a function of the user's: one that builds a
network or data, a loss or a metric.
"""

import difflib
import importlib
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from bayesbits.zoo import models


def build_model(name: str, options: Mapping[str, Any], num_classes: int | None = None) -> tuple[nn.Module, Any]:
    """A network with random weights, and example inputs or None.

    A network of the zoo is given `num_classes` unless `options` have it. A function of the user's returns a network, or
    a pair of a network and example inputs.
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


def call_factory(name: str, options: Mapping[str, Any], what: str) -> Any:
    """The result of calling a function of the user's; `what` says in errors what it builds."""
    factory = find_function(name, what)
    try:
        return factory(**options)
    except Exception as error:
        raise ValueError(f"the {what} {name!r} raised {_described(error)}") from error


def find_function(name: str, what: str) -> Callable[..., Any]:
    """A function of the user's, imported; modules in the working directory are found too."""
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute:
        raise ValueError(f"the {what} is {name!r}; a function is named package.module:function")
    if (here := os.getcwd()) not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        # The module itself may exist and import another one that does not.
        missing = f"there is no module {error.name!r}, installed or in {here}"
        raise ValueError(f"the {what} {name!r} cannot be imported: {missing}") from error
    except Exception as error:
        raise ValueError(f"the {what} {name!r} cannot be imported: {_described(error)}") from error
    function: Any = getattr(module, attribute, None)
    if not callable(function):
        nearest = difflib.get_close_matches(attribute, dir(module), n=1)
        hint = f"; did you mean {module_name}:{nearest[0]}?" if nearest else ""
        raise ValueError(f"the module {module_name} has no function {attribute!r}{hint}")
    found: Callable[..., Any] = function
    return found


def _described(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
