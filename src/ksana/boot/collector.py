"""How often Python's collector of garbage looks."""

import gc


def calm_collector() -> None:
    """What was loaded at the start lives as long as the process: the collector need not look at it
    again, and what runs make is freed by counting. Measured: a seventh of the CPU of a burst of
    firings."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
