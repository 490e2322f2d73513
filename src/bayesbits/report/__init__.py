"""The report: one HTML page about a finished run, or about the runs of a sweep, which needs no other file.

    from bayesbits.report import write_report, write_sweep_page

    write_report("runs/demo")  # runs/demo/report.html
    write_sweep_page(["runs/demo", "runs/other"], "runs/both.html")

`run_folder` reads the files of the run, `page_tables`, `layer_figure` and `training_figure` make tables and figures
from them, and `page` fills the template in `templates/`. `sweep_page` and `pareto_figure` do so for several runs.
"""

from bayesbits.report.page import write_report
from bayesbits.report.sweep_page import write_sweep_page

__all__ = ["write_report", "write_sweep_page"]
