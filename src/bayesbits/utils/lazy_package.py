"""Packages whose public names are imported when they are first used (PEP 562), so that importing one takes no time."""

from importlib import import_module
from types import ModuleType
from typing import Any


class LazyPackage(ModuleType):
    """A package with a table `_SOURCES` of where each of its public names comes from.

    The table has "module:attribute" for every name; a name without an attribute is that module. The last line of the
    package's `__init__.py` is::

        sys.modules[__name__].__class__ = LazyPackage

    Type checkers do not see this class. They read the same imports under `TYPE_CHECKING`, and `tests/test_package.py`
    holds them equal to the table.
    """

    _SOURCES: dict[str, str]

    def __getattr__(self, name: str) -> Any:
        """Import a public name when it is first used."""
        if name not in self._SOURCES:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        module, _, attribute = self._SOURCES[name].partition(":")
        value = import_module(module)
        vars(self)[name] = getattr(value, attribute) if attribute else value
        return vars(self)[name]

    def __setattr__(self, name: str, value: object) -> None:
        """Set an attribute, unless a module would take the place of a public function or class with the same name.

        `bayesbits.deploy` is a function. Python would replace it by the subpackage when that is first imported.
        """
        if not isinstance(value, ModuleType) or ":" not in self._SOURCES.get(name, ""):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*vars(self), *self._SOURCES})
