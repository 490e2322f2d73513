"""Networks, data, losses and metrics of the user's own: functions that a recipe names as "package.module:function"."""

import difflib
import importlib
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any


def call_factory(name: str, options: Mapping[str, Any], what: str) -> Any:
    """What the function returns."""
    factory = find_function(name, what)
    try:
        return factory(**options)
    except Exception as error:
        raise ValueError(f"the {what} {name!r} raised {_described(error)}") from error


def find_function(name: str, what: str) -> Callable[..., Any]:
    """The function itself; modules in the working directory are found too."""
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute:
        raise ValueError(f"the {what} is {name!r}; a function is named package.module:function")
    if (here := os.getcwd()) not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        # The module itself may be there, and import one that is not.
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
