"""Use cases of tasks, runs and callbacks."""
