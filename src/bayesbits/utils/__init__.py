"""What all of the package uses: options, batches, names, atomic file writes, tables, CUDA graphs, private torch."""
