"""The deployed network as an ONNX file that onnxruntime or OpenVINO runs in integers.

The order of the steps: `export`, `custom_nodes`, `replace_custom_nodes` with `layer_nodes`, `product_nodes` and
`tensor_names`. The portable form has `qdq_export` and `qdq_nodes` instead. `runtime` is the only file that runs
onnxruntime, and `openvino_runtime` the only one that runs OpenVINO; the integer kernels that they have are written
there.
"""
