"""The fabric of one process: the same contract, nothing survives it."""

from collections.abc import Callable, Mapping

from ksana.base.clock import Clock
from ksana.fabric.memory.hub import MemoryHub
from ksana.fabric.memory.inbox import MemoryDeadLetters, MemoryInbox
from ksana.fabric.memory.jobs import MemoryJobs, MemoryRequests
from ksana.fabric.memory.nodes import (
    MemoryMarks,
    MemoryOwners,
    MemoryPresence,
    MemoryReservations,
    MemorySnapshots,
)
from ksana.fabric.memory.sessions import MemorySessions
from ksana.ports.fabric import FabricHealth
from ksana.ports.inbox import InboxSettings


class MemorySignals:
    """See `ports.signals.Signals`. Others are heard only where several instances share a hub."""

    def __init__(self, hub: MemoryHub, instance_id: str, is_live: bool) -> None:
        self._hub = hub
        self._instance_id = instance_id
        self.is_live = is_live

    def subscribe(self, name: str, hear: Callable[[str], None]) -> Callable[[], None]:
        entry = (self._instance_id, name, hear)
        self._hub.hearers.append(entry)

        def end() -> None:
            if entry in self._hub.hearers:
                self._hub.hearers.remove(entry)

        return end

    def publish(self, name: str, detail: str = "") -> None:
        self._hub.publish(self._instance_id, name, detail)

    async def flush(self) -> None:
        """Nothing is ever under way."""


class MemoryFabric:
    """See `ports.fabric.Fabric`."""

    durable = False
    is_shared = False

    def __init__(
        self,
        instance_id: str,
        clock: Clock,
        settings: InboxSettings | None = None,
        hub: MemoryHub | None = None,
    ) -> None:
        """`hub` is given where several instances live in one process."""
        self.is_alone = hub is None
        hub = hub or MemoryHub(clock)
        settings = settings or InboxSettings()
        self.instance_id = instance_id
        self.presence = MemoryPresence(hub, instance_id)
        self.owners = MemoryOwners(hub, instance_id)
        self.inbox = MemoryInbox(hub, instance_id, settings)
        self.dead_letters = MemoryDeadLetters(hub)
        self.snapshots = MemorySnapshots(hub)
        self.sessions = MemorySessions(hub, instance_id)
        self.reservations = MemoryReservations(hub)
        self.requests = MemoryRequests(hub, instance_id, self.reservations)
        self.marks = MemoryMarks(hub)
        self.jobs = MemoryJobs(hub, instance_id, self.inbox, self.reservations)
        self.signals = MemorySignals(hub, instance_id, is_live=not self.is_alone)

    def health(self) -> FabricHealth:
        return FabricHealth(ok=True)

    async def look_at_replicas(self) -> None:
        """There are none."""

    def count_ops(self) -> Mapping[tuple[str, str], int]:
        return {}

    async def start(self) -> None:
        """Nothing to start."""

    async def close(self) -> None:
        """Nothing to close."""
