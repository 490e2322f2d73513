"""The report: one page about a finished run, which can be sent to anybody as it is.

    from bayesbits.report import write_report

    write_report("runs/demo")  # runs/demo/report.html

`reading` gathers what the run's folder holds, `figures` and `page` turn it into text; they are pure functions of it.
"""

from bayesbits.report.writing import write_report

__all__ = ["write_report"]
