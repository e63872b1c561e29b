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
    log: str = ""
    """The level at which it is a line of the log: "info" or "warning"; empty for none."""
    log_if: str = ""
    """Text that its data must hold to be logged."""
    log_unless: str = ""
    """Text that its data must not hold: such an event is logged by who knows more of it."""

    @property
    def may_alert(self) -> bool:
        """Whether events of this kind may carry `"alert":true`."""
        return "alert" in self.members or "alert" in self.optional

    def is_logged(self, data: str) -> bool:
        """Whether an event with this data, as JSON, is a line of the log."""
        if not self.log or self.log_if not in data:
            return False
        return not self.log_unless or self.log_unless not in data

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
        log="info",
    ),
    EventKind(entity="KEY", name="KEY_REVOKED", meaning="An API key was revoked.", log="info"),
    EventKind(
        entity="STORE",
        name="CLOCK_STEPPED",
        meaning="The clock by which slots are due was set ahead or back.",
        members=("direction", "from", "to"),
        log="warning",
    ),
)
