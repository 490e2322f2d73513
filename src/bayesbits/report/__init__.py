"""The report: one HTML page about a finished run, which needs no other file.

    from bayesbits.report import write_report

    write_report("runs/demo")  # runs/demo/report.html

`run_folder` reads the files of the run, `page_tables`, `layer_figure` and `training_figure` make tables and figures
from them, and `page` fills the template in `templates/`.
"""

from bayesbits.report.page import write_report

__all__ = ["write_report"]
