"""Deadlines of many calls at once, in slots of a few milliseconds: one timer of the loop serves
them all.

A call ends long before its deadline, nearly always; so setting one and dropping it must cost next
to nothing. A deadline never fires early, and late by at most a slot and the loop's own timer.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Final, Generic, TypeVar

SLOTS_PER_S: Final = 200
_NEVER: Final = 1 << 62


class Timed:
    """What can have a deadline: it remembers its slot."""

    __slots__ = ("slot",)
    slot: int


T = TypeVar("T", bound=Timed)


class Deadlines(Generic[T]):
    """Who is due when, by the monotonic clock. Each member has one deadline at a time."""

    def __init__(self, loop: asyncio.AbstractEventLoop, on_due: Callable[[T], None]) -> None:
        self._loop = loop
        self._on_due = on_due
        self._slots: dict[int, set[T]] = {}
        self._armed = _NEVER
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return sum(map(len, self._slots.values()))

    def __iter__(self) -> Iterator[T]:
        return (member for members in self._slots.values() for member in members)

    def add(self, member: T, due_s: float) -> None:
        """Set a deadline for one that has none."""
        slot = member.slot = int(due_s * SLOTS_PER_S) + 1
        members = self._slots.get(slot)
        if members is not None:
            members.add(member)
            return
        self._slots[slot] = {member}
        if slot < self._armed:
            self._arm(slot)

    def remove(self, member: T) -> None:
        """Drop the deadline, if there is one."""
        members = self._slots.get(member.slot)
        if members is not None:
            members.discard(member)
            if not members:
                del self._slots[member.slot]

    def close(self) -> None:
        """Forget everybody."""
        if self._timer is not None:
            self._timer.cancel()
        self._slots.clear()

    def _arm(self, slot: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._armed = slot
        wait_s = slot / SLOTS_PER_S - time.monotonic()
        self._timer = self._loop.call_later(max(0.001, wait_s), self._on_timer)

    def _on_timer(self) -> None:
        self._armed, self._timer = _NEVER, None
        # The loop's clock is coarser than ours and may wake us a little early.
        now = int(time.monotonic() * SLOTS_PER_S)
        for slot in sorted(slot for slot in self._slots if slot <= now):
            members = self._slots.get(slot)
            while members:  # whoever is told may end others of the same slot
                self._on_due(members.pop())
            self._slots.pop(slot, None)
        if self._slots:
            first = min(self._slots)
            if first < self._armed:
                self._arm(first)
