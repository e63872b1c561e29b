"""Loops that every surface stands on."""
