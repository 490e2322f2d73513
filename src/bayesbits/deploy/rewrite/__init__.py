"""The passes that turn the exported float network into the deployed one, in the order of `deploy/pipeline.py`."""
