"""Faults of `tests.ground.code` that no test can notice, each with its reason in a line. A fault is
named as the tool prints it; one that is noticed or no longer exists must leave this list."""

EXPLAINED: dict[str, str] = {}
