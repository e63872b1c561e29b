"""What the operator is told about coordination (X3): what it does not do yet, and what several
instances lack with `memory`.

Timers, tasks and the queue are coordinated by the store alone; nothing here is ever a failure.
"""

import structlog

from ksana.api.core.services import Check
from ksana.boot.redaction import mask_url

_log = structlog.get_logger("ksana.boot")


class CoordinationNotes:
    """Warns once per start, and answers for /readyz."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._peers = 0
        self._is_told = False

    def tell_start(self) -> None:
        """Say plainly that Redis was asked for and is not used."""
        if self._url != "memory":
            _log.warning(
                "the coordination that was configured is not used yet",
                url=mask_url(self._url),
                err=self._unused(),
            )

    def see_peers(self, count: int) -> None:
        """Take note of how many other instances live on our store."""
        self._peers = count
        if count and self._url == "memory" and not self._is_told:
            self._is_told = True
            _log.warning(
                "another instance is on this store and coordination is memory: timers, tasks and "
                "the queue work as they should, but nodes need Redis for several instances",
                peers=count,
            )

    def check(self) -> Check:
        """How it fares: always well, with a note where there is something to know."""
        if self._url != "memory":
            return Check("coordination", True, self._unused())
        if self._peers:
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

    def _unused(self) -> str:
        return (
            "nothing in this version uses Redis; "
            "the store alone coordinates timers, tasks and the queue"
        )
