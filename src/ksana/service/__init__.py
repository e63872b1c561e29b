"""Use cases: check what a caller may ask, make one transaction of it, signal the engine."""
