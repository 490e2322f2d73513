"""Experiments on real data: each module is a command that writes a JSON file into `results/`."""
