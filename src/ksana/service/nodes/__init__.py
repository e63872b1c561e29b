"""Use cases of the nodes surface."""
