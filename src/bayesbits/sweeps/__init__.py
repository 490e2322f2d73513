"""Sweeps: many runs of recipes in one folder, several at a time, that can be stopped and continued.

`settings` reads settings with several values, `grid` makes the runs of them, and `entries` finds what was done before.
`scheduler` starts the runs, in `local_processes` or as `ray_tasks`, and `progress` reads how far each one is. `summary`
has the mean and the standard error over seeds, and `record` writes them to `sweep.json`.
"""
