"""Speed and memory, as ratios measured in one run with the peer beside us. `make bench` prints the tables."""
