"""Firing, delivery and rescue of runs."""
