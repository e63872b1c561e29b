"""Coordination through Redis: one server or a Cluster, by the same code."""
