"""The list of sessions in memory."""

import heapq
from collections.abc import Sequence

from ksana.base.instant import Micros
from ksana.domain.nodes.records import SessionRecord
from ksana.fabric.memory.hub import MemoryHub


class MemorySessions:
    """See `ports.nodes.sessions.SessionList`."""

    def __init__(self, hub: MemoryHub, instance_id: str) -> None:
        self._lists = hub.sessions
        self._instance_id = instance_id

    async def write(
        self, sessions: Sequence[SessionRecord], gone: Sequence[str], ttl_us: Micros
    ) -> None:
        mine = self._lists.get(self._instance_id) or {}
        for session_id in gone:
            mine.pop(session_id, None)
        mine.update({one.session_id: one for one in sessions})
        self._lists.put(self._instance_id, mine, ttl_us)

    async def write_all(self, sessions: Sequence[SessionRecord], ttl_us: Micros) -> None:
        mine = {one.session_id: one for one in sessions}
        self._lists.put(self._instance_id, mine, ttl_us)

    async def renew(self, ttl_us: Micros) -> int:
        mine = self._lists.get(self._instance_id)
        if mine is None:
            return 0
        self._lists.put(self._instance_id, mine, ttl_us)
        return len(mine)

    async def read(
        self, instance_ids: Sequence[str], after: str, limit: int
    ) -> list[SessionRecord]:
        found = (
            one
            for instance_id in instance_ids
            for one in (self._lists.get(instance_id) or {}).values()
            if one.session_id > after
        )
        return heapq.nsmallest(limit, found, key=lambda one: one.session_id)
