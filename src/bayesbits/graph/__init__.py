"""Reading a network into a `Topology`: its layers, the tensors between them, and the channels that can be removed."""
