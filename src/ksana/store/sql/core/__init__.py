"""Connections, statements, group commit and the tables of the core."""
