"""The deployed network as an ONNX file that onnxruntime runs in integers.

The order of the steps: `export`, `custom_nodes`, `replace_custom_nodes` with `standard_nodes` and `tensor_names`.
`runtime` is the only file that runs onnxruntime; its name and the integer kernels that it has are written there.
"""
