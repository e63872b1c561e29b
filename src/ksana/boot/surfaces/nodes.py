"""Nodes, plugged in: the fabric, the engine, its loops, its endpoints, its figures for /metrics."""

import asyncio
from collections.abc import Iterable
from typing import Any, Final

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from ksana import __version__
from ksana.api.core.services import Check
from ksana.api.nodes.key_watch import KeyWatch
from ksana.api.nodes.routes import routes
from ksana.api.nodes.sockets import SocketBounds
from ksana.base.clock import Clock
from ksana.base.instant import SECOND, Instant
from ksana.boot.fabrics import KEYS_CHANGED, make_fabric, make_store_signals
from ksana.boot.instance_identity import find_host
from ksana.boot.settings.sections.nodes import NodeSettings
from ksana.boot.surface import CoreServices, Surface, words_of
from ksana.domain.nodes.events import KINDS
from ksana.domain.nodes.records import InstanceInfo
from ksana.engine.core.pump import Pump
from ksana.engine.core.signal_relay import SignalRelay
from ksana.engine.core.supervisor import Loop
from ksana.engine.nodes.engine import NodesEngine
from ksana.engine.nodes.parameters import NodeParameters
from ksana.ports.fabric import Fabric, FabricHealth
from ksana.ports.inbox import InboxSettings
from ksana.ports.store import Tx
from ksana.service.nodes.cluster import ClusterService
from ksana.service.nodes.dead_letters import NodeLetters
from ksana.service.nodes.handover import NodeHandover
from ksana.service.nodes.jobs import NodeJobService

ORDER: Final = 40
_ALONE_BLOCK_US: Final = 30 * SECOND
"""How long a reading of the inbox waits where it holds no connection and misses nothing."""


def make_surface(core: CoreServices) -> Surface:
    """Build the surface; nothing waits here."""
    settings = core.settings.section(NodeSettings)
    parameters = read_parameters(settings)
    coordination, me = core.settings.coordination, core.membership.instance_id
    fabric = make_fabric(
        coordination.url, me, core.clock, coordination.key_prefix, parameters.inbox
    )
    if fabric.is_alone:
        parameters = msgspec.structs.replace(parameters, stream_block_us=_ALONE_BLOCK_US)
    info = InstanceInfo(
        instance_id=me, host=find_host(), version=__version__, started_at=core.clock.now()
    )
    engine = NodesEngine(fabric, core.store, core.clock, info, parameters)
    peers = PeerCheck(core, fabric)
    service = NodeJobService(engine, peers.find_refusal)
    core.dead_letters.add_outside(NodeLetters(fabric, core.store))
    core.offers["node"] = NodeHandover(service, engine)
    keys = KeyWatch(
        core.clock, most=settings.max_sockets, most_of_a_key=settings.max_sockets_per_key
    )
    bounds = SocketBounds(
        queued_bytes=settings.max_queued_bytes,
        all_queued_bytes=settings.max_queued_bytes_all,
        frame_rate=settings.frame_rate,
    )
    by_store = None if fabric.is_shared else make_store_signals(core.settings.store.url, me)
    relay = SignalRelay(
        by_store or fabric.signals, core.clock, is_shared=by_store is not None or fabric.is_shared
    )
    core.offers["signals"] = relay

    def follow_keys(_: str) -> None:
        core.keys.expire()
        keys.pump.signal()

    relay.subscribe(KEYS_CHANGED, follow_keys)
    figures = NodeFigures(engine)
    core.metrics.on_scrape(figures.collect)

    async def drain() -> None:
        try:
            await engine.drain()
        finally:
            await engine.close()

    def readiness() -> list[Check]:
        health = fabric.health()
        return [Check("nodes", health.ok, health.reason or describe_replicas(health))]

    return Surface(
        name="nodes",
        events=KINDS,
        words=words_of("nodes"),
        routes=tuple(routes(engine, service, keys, bounds)),
        loops=(
            Loop("node-fabric", lambda: keep_open(fabric)),
            Loop("signals", relay.pump.run),
            *([] if by_store is None else [Loop("store-signals", by_store.run)]),
            Loop("node-peers", peers.pump.run),
            Loop("redis-replicas", _make_replica_pump(core.clock, fabric).run),
            Loop("node-keys", keys.pump.run),
            *engine.loops(),
        ),
        readiness=readiness,
        stats=ClusterService(engine).get_counts,
        drain=drain,
    )


def read_parameters(settings: NodeSettings) -> NodeParameters:
    """The operator's numbers as the engine takes them."""
    return NodeParameters(
        owner_ttl_us=settings.owner_ttl_us,
        presence_ttl_us=settings.presence_ttl_us,
        refresh_us=settings.refresh_interval_us,
        remove_stale_us=settings.remove_stale_after_us,
        stream_block_us=settings.stream_block_us,
        stream_count=settings.stream_count,
        dlq_scan_us=settings.dlq_scan_interval_us,
        keep_us=settings.keep_ended_us,
        max_jobs=settings.max_jobs,
        max_job_bytes=settings.max_job_bytes,
        inbox=InboxSettings(
            group=settings.stream_group,
            maxlen=settings.stream_maxlen,
            dlq_enabled=settings.dlq_enabled,
            dlq_maxlen=settings.dlq_maxlen,
            dlq_max_deliveries=settings.dlq_max_deliveries,
            dlq_min_idle_us=settings.dlq_min_idle_us,
            dlq_scan_count=settings.dlq_scan_count,
        ),
    )


async def keep_open(fabric: Fabric) -> None:
    """The loop around all others: it ends last, and closes the fabric."""
    await fabric.start()
    try:
        await asyncio.Event().wait()
    finally:
        await fabric.close()


def describe_replicas(health: FabricHealth) -> str | None:
    """What an operator should know before a master is lost; nothing if all is well."""
    if not health.replicas_behind:
        return None
    names = ", ".join(health.replicas_behind[:3])
    return (
        f"{len(health.replicas_behind)} replicas of Redis have not finished their first sync "
        f"({names}): if their master is lost now, they do not take over"
    )


def _make_replica_pump(clock: Clock, fabric: Fabric) -> Pump:
    async def look() -> Instant | None:
        await fabric.look_at_replicas()
        return None

    return Pump("redis-replicas", clock, look, poll_us=10 * SECOND)


class PeerCheck:
    """Several instances on one store with `memory` cannot serve nodes (X3): this one sees only its
    own. Asks the store who else lives there."""

    def __init__(self, core: CoreServices, fabric: Fabric) -> None:
        self._store = core.store
        self._me = core.membership.instance_id
        self._is_shared = fabric.is_shared
        self._others = 0
        self.pump = Pump("node-peers", core.clock, self._look, poll_us=5 * SECOND)

    def find_refusal(self) -> str | None:
        """Why nodes are not served, if so."""
        if self._is_shared or not self._others:
            return None
        return (
            f"{self._others} other instances are on this store and coordination is memory: "
            "nodes need Redis (coordination.url) for that"
        )

    async def _look(self) -> Instant | None:
        if not self._is_shared and not self._store.sole:
            self._others = await self._store.read(_count_others, self._me)
        return None


def _count_others(tx: Tx, me: str) -> int:
    return sum(
        1
        for one in tx.instances.list_instances()
        if one.id != me and one.stopped_at is None and one.lease_until > tx.now
    )


class NodeFigures:
    """What /metrics shows of nodes."""

    def __init__(self, engine: NodesEngine) -> None:
        self._engine = engine

    def collect(self) -> Iterable[Any]:
        """Everything, without waiting."""
        engine = self._engine
        ops = CounterMetricFamily(
            "scheduler_phase2_redis_op_total",
            "Operations on Redis by result.",
            labels=("op", "result"),
        )
        for (op, result), count in engine.fabric.count_ops().items():
            ops.add_metric((op, result), count)
        yield ops
        state = engine.courier.state
        yield GaugeMetricFamily(
            "scheduler_phase2_inbox_pending",
            "Messages handed out and not done.",
            value=state.pending,
        )
        yield CounterMetricFamily(
            "scheduler_phase2_dlq_moved_total",
            "Messages that became dead letters.",
            value=engine.courier.buried,
        )
        yield GaugeMetricFamily(
            "ksana_nodes_connected", "Nodes connected here.", value=len(engine.hosting.nodes)
        )
        yield GaugeMetricFamily(
            "ksana_node_sessions", "Sessions connected here.", value=len(engine.sessions.local)
        )
        yield GaugeMetricFamily(
            "ksana_node_jobs", "Node jobs in our charge.", value=len(engine.home.jobs)
        )
        yield GaugeMetricFamily(
            "ksana_node_jobs_waiting", "Those in line.", value=len(engine.home.watch.line)
        )
        yield CounterMetricFamily(
            "ksana_node_stale_attempts_total",
            "Frames about attempts that are over.",
            value=engine.hosting.stale + engine.home.endings.stale,
        )
        yield CounterMetricFamily(
            "ksana_redis_round_trips_total",
            "Batches sent to Redis.",
            value=engine.fabric.health().round_trips,
        )
        replicas = GaugeMetricFamily(
            "ksana_redis_replicas",
            "Replicas of Redis: in step, or behind and of no use if their master is lost.",
            labels=("state",),
        )
        health = engine.fabric.health()
        replicas.add_metric(("in_step",), health.replicas)
        replicas.add_metric(("behind",), len(health.replicas_behind))
        yield replicas
