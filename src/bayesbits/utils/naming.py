"""Names of modules and tensors as names of children and attributes, which may hold no dots.

"layer1.0.conv" becomes "/layer1/0/conv". A slash in a name is "~1" there, and a tilde "~0", so that every name comes
back as it was; the slash in front keeps "values" and the like apart from methods.
"""

from __future__ import annotations


def key_of(name: str) -> str:
    """A name as the name of a child module or attribute."""
    return "/" + name.replace("~", "~0").replace("/", "~1").replace(".", "/")


def name_of(key: str) -> str:
    """The name that `key_of` was given."""
    return key[1:].replace("/", ".").replace("~1", "/").replace("~0", "~")
