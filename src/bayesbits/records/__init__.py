"""The records between the steps: topology, plan, front and integer network, each with a versioned JSON form."""
