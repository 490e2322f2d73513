"""Networks and data sets for trying the library; only recipes and the command line use them.

`bayesbits.zoo.models` holds the networks, `bayesbits.zoo.data` the data sets. Nothing is imported here, so that
`import bayesbits.zoo` is free.
"""
