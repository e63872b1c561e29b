"""Use cases of the queue."""
