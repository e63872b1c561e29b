"""The fabric over Redis: the parts put together for one instance."""

from collections.abc import Mapping

from ksana.base.clock import Clock
from ksana.fabric.redis.address import read_url
from ksana.fabric.redis.inbox import RedisDeadLetters, RedisInbox
from ksana.fabric.redis.instances import RedisOwners, RedisPresence
from ksana.fabric.redis.jobs import RedisJobs, RedisRequests
from ksana.fabric.redis.keys import RedisKeys
from ksana.fabric.redis.nodes import RedisMarks, RedisReservations, RedisSnapshots
from ksana.fabric.redis.replicas import ReplicaWatch
from ksana.fabric.redis.router import Router
from ksana.fabric.redis.sessions import RedisSessions
from ksana.fabric.redis.signals import RedisSignals
from ksana.ports.fabric import FabricHealth
from ksana.ports.inbox import InboxSettings


class RedisFabric:
    """See `ports.fabric.Fabric`. Connects when first used; a server that is away at the start is
    waited for by whoever needs it."""

    durable = True
    is_shared = True
    is_alone = False

    def __init__(
        self,
        url: str,
        instance_id: str,
        clock: Clock,
        key_prefix: str = "ksana",
        settings: InboxSettings | None = None,
    ) -> None:
        settings = settings or InboxSettings()
        self._router = router = Router(read_url(url), clock)
        self._replicas = ReplicaWatch(router)
        keys = RedisKeys(key_prefix)
        self.instance_id = instance_id
        self.presence = RedisPresence(router, keys, instance_id)
        self.owners = RedisOwners(router, keys, instance_id)
        self.inbox = RedisInbox(router, keys, instance_id, settings)
        self.dead_letters = RedisDeadLetters(router, keys, settings)
        self.snapshots = RedisSnapshots(router, keys)
        self.sessions = RedisSessions(router, keys, instance_id)
        self.signals = RedisSignals(router, keys, instance_id)
        self.reservations = RedisReservations(router, keys)
        self.requests = RedisRequests(router, keys, instance_id, self.reservations)
        self.marks = RedisMarks(router, keys)
        self.jobs = RedisJobs(router, keys, instance_id, self.inbox, self.signals)

    def health(self) -> FabricHealth:
        problem = self._router.problem
        return FabricHealth(
            ok=problem is None,
            reason=problem,
            ok_us=self._router.well_us,
            round_trips=self._router.round_trips,
            blocking_reads=self._router.blocking_reads,
            signals_dropped=self.signals.dropped,
            replicas=self._replicas.in_step,
            replicas_behind=self._replicas.behind,
        )

    async def look_at_replicas(self) -> None:
        await self._replicas.look()

    def count_ops(self) -> Mapping[tuple[str, str], int]:
        return self._router.ops

    async def start(self) -> None:
        await self.signals.start()

    async def close(self) -> None:
        await self.signals.close()
        await self.inbox.close()
        await self._router.close()
