"""Experiments on real data: commands that write JSON files into `results/`, and one that converts a data set."""
