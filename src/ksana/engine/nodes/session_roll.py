"""Keeps the list of this instance's sessions in the fabric as it is here."""

from ksana.base.errors import UnavailableError
from ksana.domain.nodes.records import SessionRecord
from ksana.engine.nodes.parameters import NodeParameters
from ksana.ports.fabric import Fabric


class SessionRoll:
    """Who is here, and what changed since it was last written."""

    def __init__(self, fabric: Fabric, settings: NodeParameters) -> None:
        self._list = fabric.sessions
        self._ttl_us = settings.presence_ttl_us
        self._here: dict[str, SessionRecord] = {}
        self._changed: set[str] = set()
        self._is_whole = False
        """Whether the list is as it is here, but for what changed. Not at the start: an instance of
        the same id may have left one behind."""

    def enter(self, session: SessionRecord) -> None:
        """It is connected here."""
        self._here[session.session_id] = session
        self._changed.add(session.session_id)

    def leave(self, session_id: str) -> None:
        """It is not connected here any more."""
        self._here.pop(session_id, None)
        self._changed.add(session_id)

    async def write(self) -> None:
        """Write what changed; everything, where the list is not known to be whole."""
        if self._is_whole and not self._changed:
            return
        changed, self._changed = self._changed, set()
        was_whole, self._is_whole = self._is_whole, True
        try:
            if was_whole:
                here = [self._here[one] for one in changed if one in self._here]
                gone = [one for one in changed if one not in self._here]
                await self._list.write(here, gone, self._ttl_us)
            else:
                await self._list.write_all(list(self._here.values()), self._ttl_us)
        except UnavailableError:
            self._is_whole = False  # how much of it was written is unknown
            raise

    async def renew(self) -> None:
        """Let it be seen for longer, and find out whether it was lost."""
        listed = await self._list.renew(self._ttl_us)
        if listed != len(self._here) and not self._changed:
            self._is_whole = False
