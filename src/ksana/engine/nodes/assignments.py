"""Nodes whose socket is here, and the attempts they work on. Values; what happens to them is in
`hosting` and `results`."""

from ksana.base.instant import Instant
from ksana.domain.nodes.messages import Assign
from ksana.domain.nodes.records import JobRequest, NodeRecord
from ksana.engine.nodes.peers import Peer


class Assignment:
    """An attempt that one of our nodes has."""

    __slots__ = ("acked_at", "attempt", "home", "is_ending", "request", "started_at", "told")

    def __init__(self, request: JobRequest, attempt: int, home: str) -> None:
        self.request = request
        self.attempt = attempt
        self.home = home
        self.acked_at: Instant = 0
        self.started_at: Instant = 0
        self.told = ""
        self.is_ending = False

    @property
    def state(self) -> str:
        """How far it is, as far as the node said."""
        if self.started_at:
            return "RUNNING"
        return "ACCEPTED" if self.acked_at else ""


class HostedNode:
    """A node whose socket is here."""

    __slots__ = ("assigned", "parked", "peer", "record")

    def __init__(self, record: NodeRecord, peer: Peer) -> None:
        self.record = record
        self.peer = peer
        self.assigned: dict[str, Assignment] = {}
        self.parked: dict[str, Assign] = {}
        """Jobs that came although all slots are in use: the slot was free for the fabric before it
        was free here. They are handed over as soon as it is."""

    @property
    def is_full(self) -> bool:
        """Whether the node has as many jobs as slots."""
        return len(self.assigned) >= self.record.slots
