"""Use cases that every surface shares."""
