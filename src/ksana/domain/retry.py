"""Pauses between attempts, for every surface. Pure: the same attempt of the same thing always gets
the same pause, so a decision can be replayed from its inputs.
"""

import hashlib
from typing import Literal

import msgspec

from ksana.base.instant import Micros

Strategy = Literal["fixed", "exponential"]

_MOST_DOUBLINGS = 40
"""Beyond this every delay is above any `max_delay_us`; it keeps the shift small."""


class Backoff(msgspec.Struct, frozen=True, gc=False):
    """How long to wait after a failed attempt."""

    initial_delay_us: Micros
    strategy: Strategy = "fixed"
    max_delay_us: Micros = 3_600_000_000
    jitter_us: Micros = 0


def delay_after(backoff: Backoff, attempt: int, key: str = "") -> Micros:
    """The pause after failed attempt `attempt`, counted from 1. The jitter comes from a hash of
    `key` and the attempt."""
    delay = backoff.initial_delay_us
    if backoff.strategy == "exponential":
        doublings = min(max(attempt, 1) - 1, _MOST_DOUBLINGS)
        delay = min(backoff.initial_delay_us << doublings, backoff.max_delay_us)
    if backoff.jitter_us:
        digest = hashlib.blake2b(f"{key}:{attempt}".encode(), digest_size=8).digest()
        delay += int.from_bytes(digest, "big") % (backoff.jitter_us + 1)
    return delay
