"""`bayesbits demo`: the whole walk on a small network, in a minute or two."""

from pathlib import Path
from typing import Annotated

import typer

from bayesbits.cli.console import say
from bayesbits.cli.deployed import verify
from bayesbits.cli.extras import require_extras
from bayesbits.cli.search import finish, run_with_way_on, show
from bayesbits.recipes import load
from bayesbits.recipes.run_folder import RECIPE as RUN_RECIPE
from bayesbits.recipes.run_folder import REPORT, clear

RECIPE = "digits-lenet5"
INPUTS = 359  # the whole test set


def demo(out: Annotated[Path, typer.Option(help="The folder to write to.")] = Path("runs/demo")) -> None:
    """Compress LeNet-5 on the handwritten digits that scikit-learn carries: two minutes on a CPU, no download.

    The float network is trained, bits and channels are learned, the result is fine-tuned and tested, and the integer
    network that comes of it is written as ONNX files and proven equal. A demo that was interrupted goes on; one that
    was finished starts anew.
    """
    require_extras("bayesbits demo", "onnx", "data")
    recipe = load(RECIPE)
    finished = (out / REPORT).exists() and (out / RUN_RECIPE).exists()
    if finished and load(out / RUN_RECIPE).description == recipe.description:  # never another recipe's run
        clear(out)
    say(f"{recipe.description}. Training on scikit-learn's digits, on this machine.")
    result = run_with_way_on(recipe, out, resume=True)
    show(result)
    try:
        verify(out, INPUTS)
    finally:  # the page says what was found where the proof failed
        finish(result, out)
