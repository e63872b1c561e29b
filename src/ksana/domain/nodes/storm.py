"""Storm protection (N11): when MODEL_NOT_AVAILABLE marks a model of a node as away. Pure.

A node that just restarted refuses every job of a model at once, on many instances. One mark is
enough: repeats within the debounce change nothing, and a node may make only so many marks in a
window, whatever it says.
"""

from collections.abc import Sequence
from typing import Final, Literal

import msgspec

from ksana.base.instant import SECOND, Instant, Micros

MarkResult = Literal["marked", "debounced", "limited"]
"""marked: away from now on. debounced: it was marked a moment ago, and that mark stands. limited:
the node made too many marks; this one is not kept."""


class StormLimits(msgspec.Struct, frozen=True):
    """How marks are kept small in number."""

    away_us: Micros = 60 * SECOND
    debounce_us: Micros = 5 * SECOND
    most: int = 30
    window_us: Micros = 10 * SECOND


DEFAULT_STORM: Final = StormLimits()


def judge_mark(
    limits: StormLimits, now: Instant, marked_at: Instant | None, marks: Sequence[Instant]
) -> MarkResult:
    """Decide on one more MODEL_NOT_AVAILABLE. `marked_at` is when this model of this node was last
    marked, `marks` when any model of the node was."""
    if marked_at is not None and now < marked_at + limits.debounce_us:
        return "debounced"
    recent = sum(1 for at in marks if at > now - limits.window_us)
    return "limited" if recent >= limits.most else "marked"
