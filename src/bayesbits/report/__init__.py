"""The report: one HTML page about a run, or about several, which needs no other file.

    from bayesbits.report import write_comparison_page, write_report

    write_report("runs/demo")  # runs/demo/report.html
    write_comparison_page(["runs/demo", "runs/other"], "runs/both.html")

`run_data` reads the folder of a run. `network_figure`, `training_charts`, `gate_figures`, `histogram_figure` and
`layer_errors` make the figures, `headline` and `page_tables` the texts, and `page` fills the template in `templates/`.
`comparison_page` compares several runs.
Figures are plain SVG with a small script. Libraries that could be embedded whole were compared: Plotly (MIT, 4.8 MB in
version 7.1) and Bokeh (BSD, 1.3 MB in version 3.9, 2 MB with tables). Both are many times the size of a page, neither
draws the network with its ways, and a page would be empty where scripts do not run, on paper for one.
"""

from bayesbits.report.comparison_page import write_comparison_page
from bayesbits.report.page import write_report
from bayesbits.report.run_data import read_run

__all__ = ["read_run", "write_comparison_page", "write_report"]
