"""The passes that turn the exported float network into the deployed one; `deploy/pipeline.py` lists them in order.

Each pass is one function that takes and changes a `program.RewrittenProgram`, in the file of its name. No pass imports
another one. `program`, `index_masks` and `size_arguments` are what they share.
"""
