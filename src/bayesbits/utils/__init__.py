"""What every room may use: checks of options, nested structures, names, files written whole, torch's CUDA graphs."""
