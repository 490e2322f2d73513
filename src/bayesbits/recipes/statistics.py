"""The statistics of a run's final network, measured on a few test examples and written to its folder.

No decision depends on them; the report shows them.
"""

from collections.abc import Callable
from pathlib import Path

from bayesbits.compression.compressor import Compressor
from bayesbits.compression.statistics import measure_statistics
from bayesbits.recipes.data import Loaders, first_examples, inputs_of
from bayesbits.recipes.evaluation import full_float32
from bayesbits.recipes.run_folder import STATISTICS
from bayesbits.utils.batches import to_device

EXAMPLES = 16


def write_statistics(compressor: Compressor, loaders: Loaders, folder: Path, say: Callable[[str], None]) -> None:
    """Measure the statistics of a network with final widths, and write them to the folder of its run.

    The run is finished by then: where measuring fails, `say` is told why, and there is no file.
    """
    path = folder / STATISTICS
    path.unlink(missing_ok=True)  # those of another network must not remain
    try:
        device = next(compressor.model.parameters()).device
        inputs = to_device(first_examples((inputs_of(batch) for batch in loaders.test), EXAMPLES), device)
        with full_float32():
            measure_statistics(compressor, inputs).save(path)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        say(f"the statistics of the tensors could not be measured ({reason}); the report goes without them")
