"""bayesbits learns how many bits every tensor of a network deserves, and which channels it can do without."""

__version__ = "0.1.0"
