"""Turns of those who wait: so many at a time, the rest in line, in the order of coming.

Requests that wait for work are woken all at once when some comes, and on a store that is shared
they would all try together and keep those who give work back from it. So they try a few at a time.
Nobody stands in line for longer than it would wait anyway: what is handed to a caller who has given
up is lost until its lease runs out.
"""

import asyncio
from collections import OrderedDict

from ksana.base.clock import Clock
from ksana.base.instant import SECOND, Instant


class WaitTurns:
    """Used on the event loop alone. A turn that is given back goes to the first in line, not to
    whoever comes by."""

    def __init__(self, clock: Clock, at_once: int) -> None:
        self._clock = clock
        self.free = at_once
        """WaitTurns that nobody has; then nobody is in line."""
        # Its first entry is found in constant time; a dict walks over all that were removed.
        self._line: OrderedDict[asyncio.Future[None], None] = OrderedDict()

    async def take(self, until: Instant) -> bool:
        """Wait for a turn; False if none came by then. Whoever has one gives it back."""
        if self.free:
            self.free -= 1
            return True
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._line[turn] = None
        try:
            # Not by asyncio.timeout, which needs a task: a request on the fast path has none.
            await asyncio.wait((turn,), timeout=max(0, until - self._clock.now()) / SECOND)
        except asyncio.CancelledError:
            if turn.done():  # it came all the same: it is the next one's
                self.give_back()
            else:
                del self._line[turn]
            raise
        if turn.done():
            return True
        del self._line[turn]
        return False

    def give_back(self) -> None:
        """End a turn."""
        if self._line:
            self._line.popitem(last=False)[0].set_result(None)
        else:
            self.free += 1
