"""Many deadlines, one timer."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from ksana.outbound.deadlines import SLOTS_PER_S, Deadlines, Timed
from tests.outbound.plain_target import until


class Guest(Timed):
    __slots__ = ("due_s", "told_s")

    def __init__(self, due_s: float) -> None:
        self.slot = 0
        self.due_s = due_s
        self.told_s = 0.0


@pytest.mark.spec("T12")
def test_a_deadline_is_never_early_and_all_are_told(run_plain: Callable[..., None]) -> None:
    async def scenario(net: Any) -> None:
        told: list[Guest] = []

        def on_due(guest: Guest) -> None:
            guest.told_s = time.monotonic()
            told.append(guest)

        deadlines: Deadlines[Guest] = Deadlines(asyncio.get_running_loop(), on_due)
        now_s = time.monotonic()
        guests = [Guest(now_s + n * 0.0013) for n in range(60, 0, -1)]
        gone = Guest(now_s + 0.02)
        for guest in (*guests, gone):
            deadlines.add(guest, guest.due_s)
        deadlines.remove(gone)
        deadlines.remove(gone)
        assert len(deadlines) == 60
        await until(lambda: len(told) == 60)
        assert all(guest.told_s >= guest.due_s for guest in guests) and gone.told_s == 0.0
        assert sorted(told, key=lambda guest: int(guest.due_s * SLOTS_PER_S)) == told
        assert len(deadlines) == 0
        deadlines.close()

    run_plain(scenario)
