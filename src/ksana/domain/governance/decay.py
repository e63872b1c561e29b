"""How the weight of an object fades (G13). Pure.

    weight(t) = floor + (weight - floor) · 2 ^ (-t / h)
    h = half_life · (1 + ln(1 + reinforcement_count)) · impact

`t` is the time since the weight was last set, and `impact` is 1, 1.5 or 2 for an impact tier of
low, medium or high: what was confirmed often, and what matters much, fades more slowly. Fading in
two steps is the same as fading in one, so it does not matter how often it is worked out. A weight
never falls below the floor by fading; one that was set below it stays.
"""

import math
from typing import Final

import msgspec

from ksana.base.instant import DAY, HOUR, Instant, Micros
from ksana.domain.governance.records import GovernedObject

FLOOR: Final = 0.01
IMPACT: Final = {"low": 1.0, "medium": 1.5, "high": 2.0}
STEPS_PER_HALF_LIFE: Final = 4
"""How often in a half-life the built-in worker works the weight out again."""
LEAST_STEP: Final[Micros] = HOUR
LONGEST_STEP: Final[Micros] = 30 * DAY
_AT_FLOOR: Final = 1e-6
"""A weight this close to the floor has arrived."""


def effective_half_life(governed: GovernedObject) -> float | None:
    """The half-life in microseconds, with reinforcement and impact; None if it does not fade."""
    if not governed.half_life_us:
        return None
    reinforced = 1.0 + math.log1p(max(governed.reinforcement_count, 0))
    return governed.half_life_us * reinforced * IMPACT[governed.impact_tier]


def fade(weight: float, since_us: Micros, half_life_us: float) -> float:
    """A weight after a time."""
    if weight <= FLOOR or since_us <= 0:
        return weight
    return FLOOR + (weight - FLOOR) * math.exp2(-since_us / half_life_us)


def decay(governed: GovernedObject, now: Instant) -> GovernedObject:
    """The object with its weight of now."""
    half_life = effective_half_life(governed)
    if half_life is None:
        return governed
    since = governed.decayed_at if governed.decayed_at is not None else governed.created_at
    if now <= since:
        return governed
    return msgspec.structs.replace(
        governed, weight=fade(governed.weight, now - since, half_life), decayed_at=now
    )


def next_decay_at(governed: GovernedObject, now: Instant) -> Instant | None:
    """When to work the weight out again; None once nothing more will come of it."""
    half_life = effective_half_life(governed)
    if half_life is None or governed.weight <= FLOOR + _AT_FLOOR:
        return None
    step = int(half_life / STEPS_PER_HALF_LIFE)
    return now + min(max(step, LEAST_STEP), LONGEST_STEP)
