"""The deployed network as an ONNX file."""
