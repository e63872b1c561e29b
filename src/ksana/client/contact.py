"""What a worker or a node says about its server: found, lost, still away, found again. One line
for each change, not one for each try."""

import logging
from typing import Final
from urllib.parse import urlsplit, urlunsplit

from ksana.base.clock import Clock
from ksana.base.instant import MINUTE, SECOND, Micros

REMIND_US: Final[Micros] = MINUTE
"""How often a server that stays away is mentioned again."""

log = logging.getLogger("ksana.client")


class ServerContact:
    """Remembers whether the server answers. Belongs to one event loop."""

    def __init__(self, speaker: str, address: str, clock: Clock) -> None:
        self.speaker = speaker
        parts = urlsplit(address)
        self._address = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
        self._clock = clock
        self._is_known = False
        self._lost_at: Micros | None = None
        self._said_at: Micros = 0

    @property
    def is_lost(self) -> bool:
        """Tell whether the last try failed."""
        return self._lost_at is not None

    def on_answer(self) -> None:
        """The server answered."""
        if self._is_known and self._lost_at is None:
            return
        if self._lost_at is None:
            log.info("%s: connected to %s", self.speaker, self._address)
        else:
            away_sec = (self._clock.monotonic() - self._lost_at) / SECOND
            log.info("%s: found %s again after %.1f s", self.speaker, self._address, away_sec)
        self._is_known = True
        self._lost_at = None

    def on_failure(self, error: Exception, pause_sec: float) -> None:
        """The server did not answer, or could not; it is asked again after the pause."""
        now = self._clock.monotonic()
        if self._lost_at is None:
            verb = "lost" if self._is_known else "cannot reach"
            log.warning(
                "%s: %s %s, trying again until it answers: %s",
                self.speaker,
                verb,
                self._address,
                error,
            )
            self._lost_at = self._said_at = now
        elif now - self._said_at >= REMIND_US:
            away_sec = (now - self._lost_at) / SECOND
            log.warning(
                "%s: %s is away for %.0f s: %s", self.speaker, self._address, away_sec, error
            )
            self._said_at = now
        else:
            log.debug("%s: again in %.1f s: %s", self.speaker, pause_sec, error)
