"""Reading a network into a `Topology`, and attaching quantizers to it."""
