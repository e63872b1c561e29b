"""The items of the contract: what `@pytest.mark.spec(…)` may name and `make conformance` counts."""

SURFACES = {
    "X": "everywhere",
    "T": "timers",
    "C": "tasks",
    "Q": "queue",
    "G": "governance",
    "N": "nodes",
    "B": "beyond",
}

_RANGES = {
    "X": range(1, 24),
    "T": range(24),
    "C": range(1, 24),
    "Q": range(1, 17),
    "G": range(1, 15),
    "N": range(1, 16),
    "B": range(1, 15),
}

ITEMS = tuple(f"{surface}{number}" for surface, numbers in _RANGES.items() for number in numbers)
