"""What a network costs: MACs, bit operations, bytes."""
