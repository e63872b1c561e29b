"""Leases that run out, claims that wait, upkeep of the queue."""
