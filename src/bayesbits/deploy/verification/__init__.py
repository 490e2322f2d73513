"""The proof that a deployed network and its ONNX file compute what was trained; `verify` has its steps in order."""
