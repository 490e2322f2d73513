"""Networks and data sets to try the library on; nothing in the library itself depends on them.

`bayesbits.zoo.models` holds the networks, `bayesbits.zoo.data` the data sets. Nothing is imported here, so
that `import bayesbits.zoo` costs nothing.
"""
