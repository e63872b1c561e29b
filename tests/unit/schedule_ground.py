"""Slots as tests read them."""

from ksana.domain import schedule


def take(wanted: schedule.Schedule, after: int, n: int) -> list[int]:
    slots: list[int] = []
    at = schedule.next_after(wanted, after)
    while at is not None and len(slots) < n:
        slots.append(at)
        at = schedule.next_after(wanted, at)
    return slots
