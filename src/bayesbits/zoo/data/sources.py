"""Where data sets come from: the folders in which files are looked for.

The folder is the one given, or the one that `BAYESBITS_DATA` names, or `data` in the working directory. A data set lies
in a subfolder of its own name, or in the folder itself. Nothing is ever downloaded. Missing files are named in the
error made here.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

VARIABLE = "BAYESBITS_DATA"
_DEFAULT = "data"

_PUBLISHED = {
    "mnist": "the MNIST database by LeCun, Cortes and Burges",
    "fashion_mnist": "Fashion-MNIST by Xiao, Rasul and Vollgraf, Zalando Research",
    "cifar10": "CIFAR-10 by Krizhevsky, University of Toronto (the version for Python)",
}


def candidate_folders(name: str, folder: Path | str | None) -> list[Path]:
    """The folders in which the data set `name` is looked for, in this order."""
    base = Path(folder or os.environ.get(VARIABLE) or _DEFAULT).expanduser().absolute()
    if base.name in _PUBLISHED and base.name != name:
        # MNIST and Fashion-MNIST have the same file names: one must not be taken for the other.
        return [base / name]
    return [base / name, base]


def find_files(names: Sequence[str], folders: Sequence[Path], endings: Sequence[str] = ("",)) -> dict[str, Path]:
    """The paths of those files `names` that exist: each in the first folder and with the first ending that fits."""
    found: dict[str, Path] = {}
    for name in names:
        candidates = (folder / f"{name}{ending}" for folder in folders for ending in endings)
        path = next((candidate for candidate in candidates if candidate.is_file()), None)
        if path is not None:
            found[name] = path
    return found


def not_found(name: str, expected: str, missing: Mapping[Path, str]) -> FileNotFoundError:
    """The error for a data set that no folder holds completely; `missing` says which files each folder lacks."""
    looked = [f"{place}: {'lacks ' + lack if place.is_dir() else 'no such folder'}" for place, lack in missing.items()]
    return FileNotFoundError(
        f"the data set {name!r} was not found. Looked in\n  " + "\n  ".join(looked) + f"\nExpected: {expected}.\n"
        f"It is published as {_PUBLISHED[name]}. Put the files into a folder named above, or say where they are with "
        f"the option `folder` or the environment variable {VARIABLE}."
    )
