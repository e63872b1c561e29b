"""Coordination inside one process."""
