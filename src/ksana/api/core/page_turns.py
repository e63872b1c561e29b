"""Turns at reading pages: a few at once, the callers in rotation.

A page has up to 8 MiB, and while it is read, encoded and written it takes several times that. A
thousand callers that ask for one at the same moment would have a thousand of them in memory, and
the event loop would be busy with nothing else. So a page is read when its caller's turn comes.
One caller's many requests wait behind each other, not before those of the next caller.
"""

import asyncio
from collections import deque
from typing import Any, Final

from ksana.api.core.connection_guard import group_address
from ksana.base.errors import RateLimitedError
from ksana.service.core.keys import Principal

AT_ONCE: Final = 2
"""Pages under way: as many as the store has readers for lists."""
WAIT_SEC: Final = 10.0
"""Whoever has waited this long is told to come back."""

LARGE: Final = 1024 * 1024
PAUSE: Final = 4
"""A page of 8 MiB takes the event loop 10 ms or more. Between two of them others have it for so
many times as long: callers that ask for large pages all the time do not keep it from firing."""


class PageTurns:
    """Hands out turns on the event loop."""

    def __init__(self, at_once: int = AT_ONCE, wait_sec: float = WAIT_SEC) -> None:
        self._free = at_once
        self._wait_sec = wait_sec
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    async def take(self, principal: Principal | None, peer: Any) -> None:
        """Wait for a turn; `give_back` ends it. Raise RateLimitedError if none comes in time."""
        if self._free:  # then nobody waits
            self._free -= 1
            return
        caller = (
            principal.key_id if principal is not None else group_address(peer[0] if peer else "")
        )
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        self._waiting.setdefault(caller, deque()).append(turn)
        timer = loop.call_later(self._wait_sec, _give_up, turn)
        try:
            await turn
        except BaseException:  # its time ran out, or the caller left with the turn in hand
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self.give_back()
            turn.cancel()
            raise
        finally:
            timer.cancel()

    def give_back(self, size: int = 0, began: float = 0.0) -> None:
        """A page of so many bytes is ready, whose encoding began then: the next caller's turn.
        After a large one it comes when others have had the loop."""
        if size > LARGE and self._waiting:
            asyncio.get_running_loop().call_soon(self._pause, began)
        else:
            self._call_next()

    def _pause(self, began: float) -> None:
        """The page was written in the turn of the loop before this one."""
        loop = asyncio.get_running_loop()
        loop.call_later(PAUSE * (loop.time() - began), self._call_next)

    def _call_next(self) -> None:
        waiting = self._waiting
        while waiting:
            caller = next(iter(waiting))
            turns = waiting.pop(caller)
            turn = turns.popleft()
            if turns:
                waiting[caller] = turns  # behind all others
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1


def _give_up(turn: asyncio.Future[None]) -> None:
    if not turn.done():
        turn.set_exception(
            RateLimitedError("too many pages are being read: come back later", retry_after_sec=2)
        )
