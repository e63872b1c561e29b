"""The catalogue of events: what is recorded, of which entity, with which members.

Each surface has its own kinds in `domain/<surface>/events.py` as `KINDS`; the core's are here. The
reference page is made from them, and a test compares what is written with what is declared.
"""

from collections.abc import Iterable
from typing import Final

import msgspec


class EventKind(msgspec.Struct, frozen=True):
    """One kind of event."""

    entity: str
    """TASK, RUN, JOB, LEASE, GOV_JOB, OBJECT, GATE, NODE, SESSION, NODE_JOB, KEY or STORE."""
    name: str
    meaning: str
    """One sentence for the reference page."""
    members: tuple[str, ...] = ()
    """Members that are always in its data."""
    optional: tuple[str, ...] = ()
    """Members that are there where they apply."""

    def allows(self, names: Iterable[str]) -> bool:
        """Whether data with these members is as declared."""
        given = set(names)
        return set(self.members) <= given <= {*self.members, *self.optional}


KINDS: Final = (
    EventKind(
        entity="KEY",
        name="KEY_CREATED",
        meaning="An API key was made, or taken over from a JSON file.",
        members=("name", "scopes"),
        optional=("from",),
    ),
    EventKind(entity="KEY", name="KEY_REVOKED", meaning="An API key was revoked."),
)
