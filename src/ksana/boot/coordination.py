"""What the operator is told about coordination (X3): what several instances lack with `memory`.
How Redis fares is told by the surface that uses it.

Timers, tasks and the queue are coordinated by the store alone; nothing here is ever a failure.
"""

from ksana.api.core.services import Check
from ksana.base import log


class CoordinationNotes:
    """Warns once per start, and answers for /readyz."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._peers = 0
        self._is_told = False

    def see_peers(self, count: int) -> None:
        """Take note of how many other instances live on our store."""
        self._peers = count
        if count and self._url == "memory" and not self._is_told:
            self._is_told = True
            log.warning(
                "another instance is on this store and coordination is memory: timers, tasks and "
                "the queue work as they should, but nodes need Redis for several instances",
                peers=count,
            )

    def check(self) -> Check:
        """How it fares: always well, with a note where there is something to know."""
        if self._peers and self._url == "memory":
            others = (
                "one other instance is"
                if self._peers == 1
                else f"{self._peers} other instances are"
            )
            return Check(
                "coordination",
                True,
                f"{others} on this store and it is memory: nodes need Redis for that",
            )
        return Check("coordination", True)
