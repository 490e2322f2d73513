"""`bayesbits recipes`: what the package carries."""

from rich.table import Table

from bayesbits import recipes as library
from bayesbits.cli.console import results


def recipes() -> None:
    """List the recipes that the package carries."""
    table = Table("recipe", "what", "mu", "epochs", "settings")
    for name in library.names():
        recipe = library.load(name)
        stages = (recipe.float_training, recipe.search, recipe.finetune)
        epochs = " + ".join(str(stage.epochs) for stage in stages if stage is not None)
        table.add_row(name, recipe.description, f"{recipe.search.mu:g}", epochs, recipe.source)
    results().print(table)
    results().print("Run one with: bayesbits search RECIPE. Epochs are those of float training + search + fine-tuning.")
