"""The one shape of explain at the edge: a summary, and reasons with code, message, data and event.

A surface adds its own members beside `summary` and `reasons`; it does not render reasons itself.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from ksana.domain.explain import Reason


class ReasonView(msgspec.Struct, frozen=True):
    """One reason: a stable code, a sentence, what it rests on, and the event that recorded it."""

    code: str
    message: str
    data: dict[str, Any]
    event_id: int | None


def show_reasons(reasons: Iterable[Reason]) -> list[ReasonView]:
    """Render reasons."""
    return [
        ReasonView(code=one.code, message=one.words, data=one.data, event_id=one.event_id)
        for one in reasons
    ]


def summarize_reasons(reasons: Sequence[ReasonView]) -> str:
    """All reasons as sentences."""
    return " ".join(one.message[:1].upper() + one.message[1:] + "." for one in reasons)
