"""Nodes: records, choice, attempts, moves and frames. Pure."""
