"""Instances, owners, nodes and their slots in memory."""

from collections.abc import Sequence

from ksana.base.instant import Micros
from ksana.domain.nodes.records import InstanceInfo, NodeRecord, OwnerKind
from ksana.domain.nodes.storm import MarkResult, StormLimits, judge_mark
from ksana.fabric.memory.hub import Expiring, MemoryHub
from ksana.ports.fabric import NodeChanges, ReserveResult


class MemoryPresence:
    """See `ports.fabric.Presence`."""

    def __init__(self, hub: MemoryHub, instance_id: str) -> None:
        self._hub = hub
        self._instance_id = instance_id

    async def renew(self, info: InstanceInfo, ttl_us: Micros) -> None:
        self._hub.presence.put(self._instance_id, info, ttl_us)
        self._hub.instances[self._instance_id] = None

    async def withdraw(self) -> None:
        self._hub.presence.pop(self._instance_id)

    async def list_living(self) -> list[InstanceInfo]:
        return [info for _, info in self._hub.presence.items()]

    async def list_dead(self) -> list[str]:
        return [one for one in self._hub.instances if self._hub.presence.get(one) is None]

    async def forget(self, instance_id: str) -> bool:
        if self._hub.presence.get(instance_id) is not None:
            return False
        self._hub.instances.pop(instance_id, None)
        return True


class MemoryOwners:
    """See `ports.fabric.Owners`."""

    def __init__(self, hub: MemoryHub, instance_id: str) -> None:
        self._owners = hub.owners
        self._instance_id = instance_id

    async def claim(self, kind: OwnerKind, owned_id: str, ttl_us: Micros) -> str:
        key = f"{kind}:{owned_id}"
        owner = self._owners.get(key)
        if owner is not None and owner != self._instance_id:
            return owner
        self._owners.put(key, self._instance_id, ttl_us)
        return self._instance_id

    async def replace_if(self, kind: OwnerKind, owned_id: str, former: str, ttl_us: Micros) -> bool:
        key = f"{kind}:{owned_id}"
        if self._owners.get(key) not in (None, former, self._instance_id):
            return False
        self._owners.put(key, self._instance_id, ttl_us)
        return True

    async def renew(self, kind: OwnerKind, owned_ids: Sequence[str], ttl_us: Micros) -> list[bool]:
        me = self._instance_id
        return [await self.claim(kind, owned_id, ttl_us) == me for owned_id in owned_ids]

    async def drop_if_ours(self, kind: OwnerKind, owned_id: str) -> bool:
        key = f"{kind}:{owned_id}"
        if self._owners.get(key) not in (None, self._instance_id):
            return False
        self._owners.pop(key)
        return True

    async def find(self, kind: OwnerKind, owned_id: str) -> str | None:
        return self._owners.get(f"{kind}:{owned_id}")


class MemorySnapshots:
    """See `ports.fabric.NodeSnapshots`."""

    def __init__(self, hub: MemoryHub) -> None:
        self._hub = hub

    async def publish(self, nodes: Sequence[NodeRecord], ttl_us: Micros) -> None:
        for node in nodes:
            self._hub.nodes.put(node.node_id, node, ttl_us)
            self._touch(node.node_id)

    async def withdraw(self, node_ids: Sequence[str]) -> None:
        for node_id in node_ids:
            self._hub.nodes.pop(node_id)
            self._touch(node_id)

    async def read_changes(self, mark: int) -> NodeChanges:
        nodes: dict[str, NodeRecord | None] = {
            node_id: self._hub.nodes.get(node_id)
            for node_id, (number, _) in self._hub.node_marks.items()
            if number > mark
        }
        newest = max((number for number, _ in self._hub.node_marks.values()), default=mark)
        return NodeChanges(nodes=nodes, mark=max(mark, newest))

    async def sweep(self, idle_us: Micros) -> int:
        before = self._hub.clock.monotonic() - idle_us
        idle = [node_id for node_id, (_, at) in self._hub.node_marks.items() if at <= before]
        for node_id in idle:
            del self._hub.node_marks[node_id]
            self._hub.away.pop(node_id, None)
            self._hub.away_marks.pop(node_id, None)
            self._hub.reserved.pop(node_id, None)
        return len(idle)

    def _touch(self, node_id: str) -> None:
        self._hub.node_marks[node_id] = (self._hub.next_number(), self._hub.clock.monotonic())


class MemoryReservations:
    """See `ports.fabric.Reservations`."""

    def __init__(self, hub: MemoryHub) -> None:
        self._hub = hub

    async def reserve(
        self, node_id: str, job_id: str, slots: int, model: str, ttl_us: Micros
    ) -> ReserveResult:
        hub = self._hub
        held = hub.reserved.get(node_id)
        if held is None or held.get(job_id) is None:
            away = hub.away.get(node_id)
            if away and away.get(model, (0, 0))[1] > hub.clock.monotonic():
                return "away"
            if hub.draining.get(node_id):
                return "draining"
            # Looked at closely only where it matters: most nodes have room.
            if held is not None and len(held) >= slots and held.count() >= slots:
                return "full"
        if held is None:
            if slots < 1:
                return "full"
            held = hub.reserved[node_id] = Expiring(hub.clock)
        held.put(job_id, True, ttl_us)
        return "reserved"

    async def release(self, node_id: str, job_id: str) -> bool:
        held = self._hub.reserved.get(node_id)
        if held is None:
            return False
        was_held = held.pop(job_id)
        if not len(held):
            del self._hub.reserved[node_id]
        return was_held

    async def count(self, node_id: str) -> int:
        held = self._hub.reserved.get(node_id)
        return 0 if held is None else held.count()


class MemoryMarks:
    """See `ports.fabric.NodeMarks`."""

    def __init__(self, hub: MemoryHub) -> None:
        self._hub = hub

    async def mark_away(self, node_id: str, model: str, limits: StormLimits) -> MarkResult:
        now = self._hub.clock.monotonic()
        away = self._hub.away.setdefault(node_id, {})
        marks = self._hub.away_marks.setdefault(node_id, [])
        result = judge_mark(limits, now, away[model][0] if model in away else None, marks)
        if result == "marked":
            away[model] = (now, now + limits.away_us)
            marks[:] = [at for at in marks if at > now - limits.window_us]
            marks.append(now)
        return result

    async def list_away(self, node_id: str) -> dict[str, Micros]:
        now = self._hub.clock.monotonic()
        away = self._hub.away.get(node_id, {})
        return {model: until - now for model, (_, until) in away.items() if until > now}

    async def set_draining(self, node_id: str, is_draining: bool, ttl_us: Micros) -> None:
        if is_draining:
            self._hub.draining.put(node_id, True, ttl_us)
        else:
            self._hub.draining.pop(node_id)

    async def is_draining(self, node_id: str) -> bool:
        return self._hub.draining.get(node_id) is not None
