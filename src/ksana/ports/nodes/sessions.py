"""The list of connected sessions, a part of the fabric. Every instance writes its own sessions and
reads everybody's. See `ports.fabric` for what all parts guarantee."""

from collections.abc import Sequence
from typing import Protocol

from ksana.base.instant import Micros
from ksana.domain.nodes.records import SessionRecord


class SessionList(Protocol):
    """Which sessions are connected, and where. Eventually consistent: for a moment a session that
    moved may be listed twice, or by an instance that it has left."""

    async def write(
        self, sessions: Sequence[SessionRecord], gone: Sequence[str], ttl_us: Micros
    ) -> None:
        """List these as sessions of this instance, each once however often it is written, and
        strike those that are gone. The list of this instance is seen for `ttl_us` from now."""
        ...

    async def write_all(self, sessions: Sequence[SessionRecord], ttl_us: Micros) -> None:
        """These are all sessions of this instance: whatever else it listed is struck."""
        ...

    async def renew(self, ttl_us: Micros) -> int:
        """Let the list of this instance be seen for `ttl_us` from now. Answers how many it has: 0
        where it was lost."""
        ...

    async def read(
        self, instance_ids: Sequence[str], after: str, limit: int
    ) -> list[SessionRecord]:
        """The first `limit` sessions of these instances, by id, whose id is greater than `after`.
        Reads no more than `limit` of each instance."""
        ...
